"""The microbatch flow: one manifest through the engine, and its rows into the record table, all or nothing."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any, Final, cast
from uuid import UUID

from prefect import State, flow, get_run_logger
from prefect.artifacts import acreate_markdown_artifact
from prefect.context import FlowRunContext
from prefect.runtime import flow_run as current_flow_run
from prefect.states import Cancelled

from rayorch_flows.errors import ExecutionError, InfrastructureError
from rayorch_flows.orchestration.cluster import connection as clusters
from rayorch_flows.orchestration.cluster.task_runner import SharedRayTaskRunner
from rayorch_flows.orchestration.ingest.engine_client import StopAsked, run_in_engine_host
from rayorch_flows.orchestration.ingest.prepared_flow import prepare
from rayorch_flows.orchestration.ingest.stop_requests import CANCELLED, inside_its_parent, stoppable
from rayorch_flows.orchestration.ingest.stored_microbatch import leave_summary, open_unit, record_table_of
from rayorch_flows.orchestration.reporting import events
from rayorch_flows.orchestration.reporting.exception_text import gist
from rayorch_flows.orchestration.reporting.progress import current_board, finished_part
from rayorch_flows.orchestration.reporting.report import microbatch_report
from rayorch_flows.orchestration.reporting.summary import CallSummary, MicrobatchSummary, merge_calls
from rayorch_flows.orchestration.server.flow_states import in_one_message, without_retries
from rayorch_flows.orchestration.server.outage import patiently
from rayorch_flows.orchestration.settings.call_settings import CallSettings
from rayorch_flows.orchestration.settings.places import find_places
from rayorch_flows.program.outcomes import Cause, CauseKind

RETRIES: Final = 2


class MicrobatchFailed(ExecutionError):
    """The flow run's last word when its microbatch did not go through; ``summary`` says what is committed."""

    def __init__(self, message: str, summary: MicrobatchSummary) -> None:
        super().__init__(message)
        self.summary = summary

    def __reduce__(self) -> tuple[object, ...]:
        return MicrobatchFailed, (self.message, self.summary)


class MicrobatchCancelled(MicrobatchFailed):
    """Somebody cancelled the flow run."""


@dataclass(slots=True)
class _Attempts:
    """The attempts of a flow run before this one, which Prefect has made in this process."""

    began: float
    calls: list[list[CallSummary]] = field(default_factory=list[list[CallSummary]])
    engine_s: float = 0.0


_unfinished: Final[dict[str, _Attempts]] = {}


def _run_name() -> str:
    parameters: dict[str, Any] = current_flow_run.parameters or {}
    try:
        name = prepare(parameters["flow"]).definition.name
    except Exception:
        name = "microbatch"
    return f"{name} {parameters.get('microbatch', '')[:10]}"


@flow(
    name="ingest-microbatch",
    flow_run_name=_run_name,
    retries=RETRIES,
    retry_delay_seconds=1,
    task_runner=cast("Any", SharedRayTaskRunner()),
    persist_result=False,
)
@in_one_message
async def ingest_microbatch(
    table: str,
    flow: str,
    microbatch: str,
    source: str = "",
    cluster: str | None = None,
    engine: str | dict[str, CallSettings] | None = None,
) -> MicrobatchSummary | State[Any]:
    """Run one microbatch through the lineage engine and commit its rows to the record table.

    Args:
        table: The record table, a folder, a URI, or record-table/NAME.
        flow: The flow definition, by the name of an installed one or as path.py:NAME.
        microbatch: Id of the microbatch; its manifest lies beside the table.
        source: The block corpus-source/NAME whose storage options open the source items, if they need any.
        cluster: The Ray cluster, host:port or ray-cluster/NAME; without it RAY_ADDRESS, or an embedded cluster.
        engine: Settings by Call, or engine-settings/NAME.
    """
    logger = get_run_logger()
    attempt, last = _attempt()
    places = await patiently(find_places, table, source, cluster, engine)
    prepared = prepare(flow).tuned(places.tuning)
    run_id: str | None = current_flow_run.id
    unit = await asyncio.to_thread(open_unit, places, prepared, microbatch)
    if isinstance(unit, MicrobatchSummary):
        logger.info("Its %s sources are committed: the run that did it was killed before it could say so", unit.sources)
        unit.flow_run_id = run_id or ""
        await asyncio.to_thread(leave_summary, record_table_of(places.table, prepared), unit)
        return unit
    before = _unfinished.setdefault(run_id or microbatch, _Attempts(time.monotonic()))
    summary = MicrobatchSummary(
        microbatch=microbatch,
        flow_run_id=run_id or "",
        child_noun=prepared.child_noun,
        sources=unit.total,
        staged=unit.staged,
        attempts=attempt,
    )
    error: Exception | None = None
    try:
        async with stoppable(UUID(run_id) if run_id else None) as asked:
            aborted = await run_in_engine_host(unit, prepared, places.cluster, summary, logger, asked)
        if aborted is not None and aborted.kind is CauseKind.UNAVAILABLE and (last or not aborted.retryable):
            summary.unavailable = not aborted.retryable
            raise InfrastructureError(aborted.message)
        if not last:
            _ask_for_retry(aborted, await asyncio.to_thread(unit.retryable))
        await asyncio.to_thread(unit.commit, summary, summary.flow_run_id, attempt, aborted)
        logger.info(
            "Committed %s rows to %s: %s present, %s failed, %s dropped; %s %s",
            summary.sources,
            unit.table.uri,
            summary.present,
            summary.failed,
            summary.dropped,
            summary.children,
            prepared.child_noun,
        )
        if aborted is not None:
            error = MicrobatchFailed(f"aborted: {aborted.message}", summary)
    except StopAsked:
        error = MicrobatchCancelled(CANCELLED, summary)
    except Exception as raised:
        if summary.unavailable:
            await without_retries(run_id)
        elif not last:
            before.calls.append(summary.calls)
            before.engine_s += summary.engine_s
            raise
        error = MicrobatchFailed(gist(raised), summary)
        error.__cause__ = raised
    _unfinished.pop(run_id or microbatch, None)
    summary.calls = merge_calls([*before.calls, summary.calls])
    summary.engine_s = round(before.engine_s + summary.engine_s, 3)
    summary.elapsed_s = round(time.monotonic() - before.began, 3)
    summary.error = "" if error is None else str(error)
    await _publish(summary, unit.table.uri)
    if not inside_its_parent():
        await asyncio.to_thread(leave_summary, unit.table, summary)
    if isinstance(error, MicrobatchCancelled):
        return Cancelled(message=error.message)
    if error is not None:
        raise error
    return summary


def _attempt() -> tuple[int, bool]:
    """Which attempt of the flow run this is, from 1, and whether it is the last."""
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        return 1, True
    count = max(1, context.flow_run.run_count)
    retries = context.flow.retries if context.flow is not None else 0
    return count, count > (retries or 0)


def _ask_for_retry(aborted: Cause | None, retryable: int) -> None:
    """Fail this attempt, so that Prefect starts the next one, which resumes from what is staged."""
    if aborted is not None:
        raise ExecutionError(f"the engine aborted the microbatch: {aborted.message}", where=aborted.call)
    if retryable:
        raise InfrastructureError(f"{retryable} sources failed for a reason that may pass; trying them again")


async def _publish(summary: MicrobatchSummary, table: str) -> None:
    info = clusters.current()
    report = microbatch_report(summary, table, "" if info is None else info.dashboard_url)
    words = f"{summary.present} present, {summary.failed} failed, {summary.dropped} dropped"
    await patiently(acreate_markdown_artifact, report, description=words)
    events.microbatch_ended(summary, table)
    board = current_board()
    if board is not None:
        board.update(summary.microbatch, finished_part(summary))
