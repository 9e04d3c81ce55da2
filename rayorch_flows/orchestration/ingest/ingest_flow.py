"""The parent flow: what of a source is not in its table yet goes there, one flow run per microbatch."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Final
from uuid import UUID

from prefect import State, flow
from prefect.artifacts import (
    acreate_markdown_artifact,
    acreate_progress_artifact,
    aupdate_progress_artifact,
)
from prefect.runtime import flow_run as current_flow_run
from prefect.settings import PREFECT_UI_URL
from prefect.states import Cancelled

from rayorch_flows.errors import ExecutionError
from rayorch_flows.orchestration.cluster import connection
from rayorch_flows.orchestration.cluster.engine_hosts import drain_predecessors
from rayorch_flows.orchestration.ingest.deployed_runs import expect_deployment
from rayorch_flows.orchestration.ingest.microbatch_runs import MicrobatchRuns
from rayorch_flows.orchestration.ingest.prepared_flow import PreparedFlow, prepare
from rayorch_flows.orchestration.ingest.stop_requests import CANCELLED
from rayorch_flows.orchestration.ingest.stored_microbatch import record_table_of
from rayorch_flows.orchestration.reporting import events, progress
from rayorch_flows.orchestration.reporting.progress import Board, current_board, showing
from rayorch_flows.orchestration.reporting.report import ingest_report
from rayorch_flows.orchestration.reporting.run_log import RunLog
from rayorch_flows.orchestration.reporting.summary import IngestSummary, MicrobatchSummary
from rayorch_flows.orchestration.server.flow_states import in_one_message
from rayorch_flows.orchestration.server.outage import patiently
from rayorch_flows.orchestration.settings.call_settings import CallSettings
from rayorch_flows.orchestration.settings.home import home
from rayorch_flows.orchestration.settings.ingest_parameters import IngestParameters
from rayorch_flows.orchestration.settings.places import SourcePlace, find_places
from rayorch_flows.records.lifecycle import IngestPlan, plan_ingest
from rayorch_flows.records.planning import Retry
from rayorch_flows.records.source import SourceItem, list_sources, settled
from rayorch_flows.records.table import RecordTable

PROGRESS_EVERY_S: Final = 4.0


class IngestFailed(ExecutionError):
    """The ingest ended without what was asked for; ``summary`` says what it did."""

    def __init__(self, message: str, summary: IngestSummary) -> None:
        super().__init__(message)
        self.summary = summary

    def __reduce__(self) -> tuple[object, ...]:
        return IngestFailed, (self.message, self.summary)


def _run_name() -> str:
    parameters: dict[str, Any] = current_flow_run.parameters or {}
    source, table = (str(parameters.get(name, "")).rstrip("/") for name in ("source", "table"))
    return f"{source.rpartition('/')[2] or source} into {table.rpartition('/')[2] or table}"


@flow(name="ingest", flow_run_name=_run_name, persist_result=False)
@in_one_message
async def ingest(
    source: str,
    table: str,
    flow: str = "pdf",
    microbatch_size: int = 32,
    concurrency: int = 2,
    limit: int | None = None,
    max_failed: int | None = None,
    retry: Retry = Retry.NONE,
    settle_s: float = 0.0,
    deployment: str | None = None,
    cluster: str | None = None,
    engine: str | dict[str, CallSettings] | None = None,
) -> IngestSummary | State[Any]:
    """Ingest a folder, a glob or a URI into a record table. What the table holds already is left alone.

    Args:
        source: A folder, a glob, a file, a URI that fsspec understands, or corpus-source/NAME.
        table: The record table, a folder, a URI, or record-table/NAME; it is made if it is not there.
        flow: The flow definition, by the name of an installed one or as path.py:NAME.
        microbatch_size: The most source items that go into one microbatch, which is one flow run.
        concurrency: How many microbatches run at once.
        limit: Ingest at most so many source items now.
        max_failed: The error budget: the run fails when more source items than this failed.
        retry: Which failed rows of the table to try again: none, retryable or failed.
        settle_s: Leave source items alone that have changed within so many seconds.
        deployment: Run microbatches as runs of this deployment (flow/name), each in a process of its own, instead of
            inside this run.
        cluster: The Ray cluster, host:port or ray-cluster/NAME; without it RAY_ADDRESS, or an embedded cluster.
        engine: Settings by Call, or engine-settings/NAME.
    """
    asked = IngestParameters.checked(
        source=source,
        table=table,
        flow=flow,
        microbatch_size=microbatch_size,
        concurrency=concurrency,
        limit=limit,
        max_failed=max_failed,
        retry=retry,
        settle_s=settle_s,
        deployment=deployment,
        cluster=cluster,
        engine=engine,
    )
    began = time.monotonic()
    board = current_board() or Board(tell=lambda line: None)
    log = RunLog(board)
    places = await patiently(find_places, table, source, cluster, engine)
    if deployment is None:
        await asyncio.to_thread(connection.check, places.cluster)
    else:
        await expect_deployment(deployment)
    prepared = (await asyncio.to_thread(prepare, flow)).tuned(places.tuning)
    board.stage = "listing sources"
    record_table = record_table_of(places.table, prepared)
    problems: list[str] = []
    work = await asyncio.to_thread(_plan, record_table, places.source, prepared, asked, problems)
    board.begin(prepared.child_noun, work.pending, work.unchanged)
    log.work(work, problems)
    summary = IngestSummary(
        table=record_table.uri,
        flow=prepared.definition.name,
        sources=work.unchanged + work.pending,
        unchanged=work.unchanged,
        max_failed=max_failed,
        flow_run_id=str(current_flow_run.id or ""),
        ui=PREFECT_UI_URL.value() or "",
    )
    parts: list[MicrobatchSummary] = []
    cancelled = False
    if work.microbatches:
        if summary.ui:
            board.tell(f"Watch it at {summary.ui}/runs/flow-run/{summary.flow_run_id}")
        if deployment is None:
            board.stage = "starting Ray"
            info = await asyncio.to_thread(connection.connect, home(), places.cluster)
            connection.restore_sigterm()
            log.say(f"Ray at {info.address}" + (" (embedded)" if info.embedded else ""))
            plan = prepared.plan
            for old in await asyncio.to_thread(drain_predecessors, plan.name, plan.physical_fingerprint):
                log.say(f"Draining {old}, which ran this pipeline in an earlier form")
        board.stage = "ingesting"
        runs = MicrobatchRuns(record_table, asked, log, board)
        with showing(board):
            async with _progress_artifact(board):
                parts, cancelled = await runs.run(work.microbatches, UUID(summary.flow_run_id))
    summary.add(parts)
    summary.elapsed_s = round(time.monotonic() - began, 3)
    report = ingest_report(summary, parts, summary.ui)
    words = f"{summary.present} present, {summary.failed} failed, {summary.unchanged} unchanged"
    await patiently(acreate_markdown_artifact, report, key="ingest-report", description=words)
    events.corpus_completed(summary)
    board.stage, board.summary = "done", summary
    if cancelled:
        return Cancelled(message=CANCELLED)
    if summary.unaccounted:
        raise IngestFailed(
            f"{summary.unaccounted} of {summary.sources} sources are not in the table: {'; '.join(summary.errors)}",
            summary,
        )
    if summary.over_budget:
        raise IngestFailed(f"{summary.failed} sources failed, {max_failed} may", summary)
    return summary


def list_place(source: SourcePlace, prepared: PreparedFlow, problems: list[str]) -> list[SourceItem]:
    """The source items of a place: by its own patterns, or else the flow's."""
    patterns = source.patterns or prepared.definition.patterns
    return list_sources(source.uri, patterns, storage_options=source.options, problems=problems)


def _plan(
    table: RecordTable,
    source: SourcePlace,
    prepared: PreparedFlow,
    asked: IngestParameters,
    problems: list[str],
) -> IngestPlan:
    sources = list_place(source, prepared, problems)
    return plan_ingest(
        table,
        settled(sources, asked.settle_s) if asked.settle_s > 0 else sources,
        flow=prepared.definition.name,
        semantic_fingerprint=prepared.fingerprint,
        microbatch_size=asked.microbatch_size,
        retry=asked.retry,
        limit=asked.limit,
        storage_options=source.options,
    )


@asynccontextmanager
async def _progress_artifact(board: Board) -> AsyncGenerator[None]:
    """The progress artifact of the whole ingest, updated at a steady pace while the microbatches run."""
    began = time.monotonic()
    artifact = await patiently(acreate_progress_artifact, 0.0, key="ingest-progress", description="starting")

    def words() -> str:
        return progress.describe(board.total, time.monotonic() - began, board.child_noun)

    async def show() -> None:
        with contextlib.suppress(Exception):
            await aupdate_progress_artifact(artifact, progress.percent(board.total), description=words())

    async def keep_up() -> None:
        while True:
            await asyncio.sleep(PROGRESS_EVERY_S)
            await show()

    keeper = asyncio.create_task(keep_up())
    try:
        yield
        await show()
    finally:
        keeper.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await keeper
