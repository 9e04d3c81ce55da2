"""``rayorch-flows ingest``: the flows in this process, with what they need started before and stopped after."""

from __future__ import annotations

import asyncio
import importlib
import json
from typing import Any

from rich.console import Console

from rayorch_flows.cli import exit_status
from rayorch_flows.cli.block_lookup import named_cluster
from rayorch_flows.cli.session import session
from rayorch_flows.errors import RayorchFlowsError
from rayorch_flows.orchestration.cluster import connection
from rayorch_flows.orchestration.ingest.prepared_flow import prepare
from rayorch_flows.orchestration.reporting.display import displayed
from rayorch_flows.orchestration.reporting.progress import showing
from rayorch_flows.orchestration.reporting.summary import IngestSummary
from rayorch_flows.orchestration.reporting.summary_text import summary_text
from rayorch_flows.orchestration.server.outage import wait_no_more
from rayorch_flows.orchestration.server.prefect_server import Server, health_trouble
from rayorch_flows.orchestration.settings.ingest_parameters import IngestParameters
from rayorch_flows.orchestration.settings.places import is_block
from rayorch_flows.records.source import list_sources
from rayorch_flows.uris import local_path


def run_ingest(asked: IngestParameters, *, as_json: bool, verbose: bool) -> int:
    """Run the ingest flow, show its progress and its summary; return the exit status."""
    prepared = prepare(asked.flow)
    if not is_block(asked.source) and local_path(asked.source) is not None:
        list_sources(asked.source, prepared.definition.patterns, problems=[])
    if not is_block(asked.cluster):
        connection.check(named_cluster(asked.cluster))
    console = Console()
    with session(verbose=verbose, meanwhile=_import_flows) as server, asyncio.Runner() as runner:
        try:
            result = runner.run(_run(asked, console, server))
        except BaseException:
            _stop_waiting(server)
            raise
    if not isinstance(result, IngestSummary):
        if isinstance(result, RayorchFlowsError) or not isinstance(result, Exception):
            raise result
        raise RayorchFlowsError(f"{type(result).__name__}: {result}") from result
    print(summary_text(result, prepared.child_noun), flush=True)
    if as_json:
        print(json.dumps(result.model_dump(mode="json")), flush=True)
    return exit_status.of_ingest(result)


def _import_flows() -> None:
    importlib.import_module("rayorch_flows.orchestration.ingest.ingest_flow")


def _stop_waiting(server: Server) -> None:
    """Before the flows are cancelled: they tell the server, if it is there."""
    if health_trouble(server.api_url):
        wait_no_more()


async def _run(asked: IngestParameters, console: Console, server: Server) -> IngestSummary | BaseException:
    from rayorch_flows.orchestration.ingest.ingest_flow import ingest

    run: Any = ingest

    async with displayed(console) as board:
        with showing(board):
            running: asyncio.Task[Any] = asyncio.create_task(run(**asked.flow_arguments(), return_state=True))
            try:
                state = await asyncio.shield(running)
            except asyncio.CancelledError:  # Ctrl-C
                _stop_waiting(server)
                if not running.cancelling():
                    running.cancel()
                await asyncio.gather(running, return_exceptions=True)
                raise
            return board.summary or await state.aresult(raise_on_failure=False)
