"""``rayorch-flows ingest``: the flows in this process, with what they need started before and stopped after."""

from __future__ import annotations

import asyncio
import importlib
import json
from typing import Any

from rich.console import Console

from rayorch_flows.cli.block_lookup import named_cluster
from rayorch_flows.cli.session import session
from rayorch_flows.errors import RayorchFlowsError
from rayorch_flows.orchestration.cluster import connection as clusters
from rayorch_flows.orchestration.ingest.prepared_flow import prepare
from rayorch_flows.orchestration.reporting.display import displayed
from rayorch_flows.orchestration.reporting.progress import showing
from rayorch_flows.orchestration.reporting.summary import IngestSummary
from rayorch_flows.orchestration.reporting.summary_text import summary_text
from rayorch_flows.orchestration.server.outage import wait_no_more
from rayorch_flows.orchestration.server.prefect_server import Server, health_trouble
from rayorch_flows.orchestration.settings.number_checks import check_numbers
from rayorch_flows.orchestration.settings.places import is_block
from rayorch_flows.records.source import list_sources
from rayorch_flows.uris import local_path


def run_ingest(parameters: dict[str, Any], *, as_json: bool, verbose: bool) -> int:
    """Run the ingest flow, show its progress and its summary; return the exit status."""
    numbers = ("microbatch_size", "concurrency", "limit", "max_failed")
    check_numbers(**{name: parameters[name] for name in numbers})
    prepared = prepare(parameters["flow"])
    source = parameters["source"]
    if not is_block(source) and local_path(source) is not None:
        list_sources(source, prepared.definition.patterns, problems=[])
    if not is_block(parameters["cluster"]):
        clusters.check(named_cluster(parameters["cluster"]))
    console = Console()
    with session(verbose=verbose, meanwhile=_import_flows) as server, asyncio.Runner() as runner:
        try:
            result = runner.run(_run(parameters, console, server))
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
    return result.exit_code


def _import_flows() -> None:
    importlib.import_module("rayorch_flows.orchestration.ingest.ingest_flow")


def _stop_waiting(server: Server) -> None:
    """Before the flows are cancelled: they tell the server, if it is there."""
    if health_trouble(server.api_url):
        wait_no_more()


async def _run(parameters: dict[str, Any], console: Console, server: Server) -> IngestSummary | BaseException:
    from rayorch_flows.orchestration.ingest.ingest_flow import ingest

    run: Any = ingest

    async with displayed(console) as board:
        with showing(board):
            running: asyncio.Task[Any] = asyncio.create_task(run(**parameters, return_state=True))
            try:
                state = await asyncio.shield(running)
            except asyncio.CancelledError:  # Ctrl-C
                _stop_waiting(server)
                if not running.cancelling():
                    running.cancel()
                await asyncio.gather(running, return_exceptions=True)
                raise
            return board.summary or await state.aresult(raise_on_failure=False)
