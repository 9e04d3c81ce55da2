"""The microbatch flow: one manifest through the engine, and its rows into the record table, all or nothing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass
from typing import Any, Final, cast
from uuid import UUID

from prefect import State, flow, get_run_logger
from prefect.artifacts import acreate_markdown_artifact
from prefect.context import FlowRunContext
from prefect.runtime import flow_run as current_flow_run
from prefect.states import Cancelled

from rayorch_flows.errors import ExecutionError, InfrastructureError
from rayorch_flows.orchestration.cluster import connection
from rayorch_flows.orchestration.cluster.task_runner import SharedRayTaskRunner
from rayorch_flows.orchestration.ingest.attempt_decision import Action, Decision, Ended, decide, how_it_ended
from rayorch_flows.orchestration.ingest.engine_client import StopAsked, run_in_engine_host
from rayorch_flows.orchestration.ingest.left_summaries import leave_attempts, leave_summary, take_attempts
from rayorch_flows.orchestration.ingest.prepared_flow import PreparedFlow, prepare
from rayorch_flows.orchestration.ingest.stop_requests import CANCELLED, inside_its_parent, stoppable
from rayorch_flows.orchestration.ingest.stored_microbatch import StoredMicrobatch, open_microbatch, record_table_of
from rayorch_flows.orchestration.reporting import events
from rayorch_flows.orchestration.reporting.exception_text import gist
from rayorch_flows.orchestration.reporting.progress import current_board, finished_part
from rayorch_flows.orchestration.reporting.report import microbatch_report
from rayorch_flows.orchestration.reporting.summary import CallSummary, MicrobatchSummary, merge_calls
from rayorch_flows.orchestration.server.flow_states import in_one_message, without_retries
from rayorch_flows.orchestration.server.outage import patiently
from rayorch_flows.orchestration.settings.call_settings import CallSettings
from rayorch_flows.orchestration.settings.places import ClusterPlace, find_places
from rayorch_flows.program.outcomes import Cause

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
    stored = await asyncio.to_thread(open_microbatch, places, prepared, microbatch)
    if isinstance(stored, MicrobatchSummary):
        logger.info(
            "Its %s sources are committed: the run that did it was killed before it could say so", stored.sources
        )
        stored.flow_run_id = run_id or ""
        await asyncio.to_thread(leave_summary, record_table_of(places.table, prepared), stored)
        return stored
    began = time.monotonic()
    summary = MicrobatchSummary(
        microbatch=microbatch,
        flow_run_id=run_id or "",
        child_noun=prepared.child_noun,
        sources=stored.total,
        staged=stored.staged,
        attempts=attempt,
    )
    before = await asyncio.to_thread(_before, stored, summary)
    async with stoppable(UUID(run_id) if run_id else None) as asked:
        ending = await _in_engine(stored, prepared, places.cluster, summary, asked, last=last)
    if decide(ending.ended, last=last).action is Action.COMMIT:
        ending = await _commit(stored, summary, ending)
    summary.calls = merge_calls([*before, summary.calls])
    summary.elapsed_s = round(summary.elapsed_s + time.monotonic() - began, 3)
    decision = decide(ending.ended, last=last)
    logger.log(
        logging.DEBUG if decision.action is Action.COMMIT else logging.INFO,
        "Attempt %s: %s, so %s: %s",
        attempt,
        ending.ended,
        decision.action,
        decision.reason,
    )
    if decision.action is Action.RETRY:
        with contextlib.suppress(Exception):  # figures of the report, no reason to lose the attempt's own error
            await asyncio.to_thread(leave_attempts, stored.table, summary)
        raise ending.error or ExecutionError(str(decision.reason))
    if ending.ended is Ended.NOT_RUNNABLE:
        summary.unavailable = True
        await without_retries(run_id)
    error = _last_word(decision, ending, summary)
    summary.error = "" if error is None else str(error)
    await _publish(summary, stored.table.uri)
    if not inside_its_parent():
        await asyncio.to_thread(leave_summary, stored.table, summary)
    if isinstance(error, MicrobatchCancelled):
        return Cancelled(message=error.message)
    if error is not None:
        raise error
    return summary


@dataclass(frozen=True, slots=True)
class _Ending:
    """How an attempt ended; ``error`` is what it raises if Prefect is to try again."""

    ended: Ended
    aborted: Cause | None = None
    error: Exception | None = None


def _before(stored: StoredMicrobatch, summary: MicrobatchSummary) -> list[list[CallSummary]]:
    """Add the times of the flow run's earlier attempts; return their Calls. Blocking."""
    if summary.attempts == 1:
        return []
    found = take_attempts(stored.table, summary.microbatch, summary.flow_run_id)
    if found is None:
        return []
    summary.elapsed_s, summary.engine_s = found.elapsed_s, found.engine_s
    return [found.calls]


async def _in_engine(
    stored: StoredMicrobatch,
    prepared: PreparedFlow,
    cluster: ClusterPlace | None,
    summary: MicrobatchSummary,
    asked: asyncio.Event,
    *,
    last: bool,
) -> _Ending:
    """Run what is not staged yet, and say how that ended."""
    try:
        aborted = await run_in_engine_host(stored, prepared, cluster, summary, get_run_logger(), asked)
        retryable = 0 if last or aborted is not None else await asyncio.to_thread(stored.retryable)
    except StopAsked:
        return _Ending(Ended.STOP_ASKED)
    except Exception as raised:
        return _Ending(Ended.RAISED, error=raised)
    ended = how_it_ended(aborted, retryable)
    if ended is Ended.FINISHED_FOR_NOW:
        trouble = f"{retryable} sources failed for a reason that may pass; trying them again"
        return _Ending(ended, error=InfrastructureError(trouble))
    if aborted is None:
        return _Ending(ended)
    message = f"the engine aborted the microbatch: {aborted.message}"
    return _Ending(ended, aborted, ExecutionError(message, where=aborted.call))


async def _commit(stored: StoredMicrobatch, summary: MicrobatchSummary, ending: _Ending) -> _Ending:
    try:
        await asyncio.to_thread(stored.commit, summary, summary.flow_run_id, summary.attempts, ending.aborted)
    except Exception as raised:
        return _Ending(Ended.RAISED, error=raised)
    get_run_logger().info(
        "Committed %s rows to %s: %s present, %s failed, %s dropped; %s %s",
        summary.sources,
        stored.table.uri,
        summary.present,
        summary.failed,
        summary.dropped,
        summary.children,
        summary.child_noun,
    )
    return ending


def _last_word(decision: Decision, ending: _Ending, summary: MicrobatchSummary) -> MicrobatchFailed | None:
    """What the flow run ends with; None if all is well."""
    if decision.action is Action.CANCEL:
        return MicrobatchCancelled(CANCELLED, summary)
    if ending.aborted is not None:
        said = ending.aborted.message
        return MicrobatchFailed(said if decision.action is Action.GIVE_UP else f"aborted: {said}", summary)
    if ending.error is None or decision.action is Action.COMMIT:
        return None
    error = MicrobatchFailed(gist(ending.error), summary)
    error.__cause__ = ending.error
    return error


def _attempt() -> tuple[int, bool]:
    """Which attempt of the flow run this is, from 1, and whether it is the last."""
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        return 1, True
    count = max(1, context.flow_run.run_count)
    retries = context.flow.retries if context.flow is not None else 0
    return count, count > (retries or 0)


async def _publish(summary: MicrobatchSummary, table: str) -> None:
    info = connection.current()
    report = microbatch_report(summary, table, "" if info is None else info.dashboard_url)
    words = f"{summary.present} present, {summary.failed} failed, {summary.dropped} dropped"
    await patiently(acreate_markdown_artifact, report, description=words)
    events.microbatch_ended(summary, table)
    board = current_board()
    if board is not None:
        board.update(summary.microbatch, finished_part(summary))
