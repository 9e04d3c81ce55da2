"""The microbatch flow: one manifest through the engine, and its rows into the record table, all or nothing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, cast

import cloudpickle
from prefect import flow, get_run_logger
from prefect.artifacts import acreate_markdown_artifact
from prefect.context import FlowRunContext
from prefect.runtime import flow_run as current_flow_run
from prefect_ray.context import remote_options
from prefect_ray.task_runners import PrefectRayFuture

from rayorch_flows.errors import ExecutionError, InfrastructureError
from rayorch_flows.orchestration import cluster, events
from rayorch_flows.orchestration.engine_task import EngineRequest, EngineResult, part_of, run_in_engine
from rayorch_flows.orchestration.prepared import PreparedFlow, prepare
from rayorch_flows.orchestration.problems import gist
from rayorch_flows.orchestration.progress import Part, current_board
from rayorch_flows.orchestration.report import microbatch_report
from rayorch_flows.orchestration.settings import home
from rayorch_flows.orchestration.summary import CallSummary, MicrobatchSummary
from rayorch_flows.orchestration.task_runner import SharedRayTaskRunner
from rayorch_flows.orchestration.unit import Unit, open_unit
from rayorch_flows.program.outcomes import Cause, CauseKind
from rayorch_flows.runtime import host

if TYPE_CHECKING:
    from rayorch_flows.runtime.host import HostClient, MicrobatchSpec

RETRIES: Final = 2
WATCH_S: Final = 0.4
CANCEL_S: Final = 8.0


class MicrobatchFailed(ExecutionError):
    """The flow run's last word when its microbatch did not go through; ``summary`` says what is committed."""

    def __init__(self, message: str, summary: MicrobatchSummary) -> None:
        super().__init__(message)
        self.summary = summary

    def __reduce__(self) -> tuple[object, ...]:
        return MicrobatchFailed, (self.message, self.summary)


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
async def ingest_microbatch(table: str, flow: str, microbatch: str) -> MicrobatchSummary:
    """Run one microbatch through the lineage engine and commit its rows to the record table.

    Args:
        table: The record table, a folder or URI.
        flow: The flow definition, by the name of an installed one or as path.py:NAME.
        microbatch: Id of the microbatch; its manifest lies beside the table.
    """
    began = time.monotonic()
    logger = get_run_logger()
    attempt, last = _attempt()
    prepared = prepare(flow)
    unit = await asyncio.to_thread(open_unit, table, prepared, microbatch)
    summary = MicrobatchSummary(
        microbatch=microbatch,
        flow_run_id=str(current_flow_run.id or ""),
        sources=unit.total,
        staged=unit.staged,
        attempts=attempt,
    )
    error: Exception | None = None
    try:
        aborted = await _engine(unit, prepared, summary, logger)
        if not last:
            _ask_for_retry(aborted, await asyncio.to_thread(unit.retryable))
        await asyncio.to_thread(unit.commit, summary, summary.flow_run_id, attempt, aborted)
        logger.info(
            "Committed %s rows to %s: %s present, %s failed, %s dropped; %s %s",
            summary.sources,
            table,
            summary.present,
            summary.failed,
            summary.dropped,
            summary.children,
            prepared.child_noun,
        )
        if aborted is not None:
            error = MicrobatchFailed(f"aborted: {aborted.message}", summary)
    except Exception as raised:
        if not last:
            raise
        error = MicrobatchFailed(gist(raised), summary)
        error.__cause__ = raised
    summary.elapsed_s = round(time.monotonic() - began, 3)
    summary.error = "" if error is None else str(error)
    await _publish(summary, table)
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


async def _engine(unit: Unit, prepared: PreparedFlow, summary: MicrobatchSummary, logger: Any) -> Cause | None:
    """Run what is not staged yet; return the cause if the engine aborted the microbatch."""
    board = current_board()
    if board is not None:
        board.update(unit.microbatch, Part(unit.total, done=unit.staged))
    if not unit.rows:
        logger.info("All %s sources are staged already", unit.total)
        return None
    spec = unit.spec()
    request = EngineRequest(
        prepared.plan, cluster.NAMESPACE, spec, cluster.worker_environment(), prepared.child_noun, unit.staged
    )
    with remote_options(num_cpus=0, max_retries=0):
        future: PrefectRayFuture[EngineResult] = run_in_engine.submit(cloudpickle.dumps(request))  # pyright: ignore[reportAssignmentType]
    try:
        async with _watching(prepared, spec, unit.staged):
            result = await _result(future)
    except asyncio.CancelledError:
        await _cancel(prepared, spec, future, logger)
        raise
    summary.calls = [CallSummary.of(call) for call in result.calls]
    summary.engine_s = round(result.engine_s, 3)
    if result.state == "cancelled":
        raise InfrastructureError("somebody else cancelled the microbatch in the engine", next_step="run it again")
    return None if result.state == "done" else result.error or Cause(CauseKind.FUNCTION_ERROR, "the engine aborted")


async def _result(future: PrefectRayFuture[EngineResult]) -> EngineResult:
    """Wait for the task without blocking the loop, so that a cancellation arrives at once."""
    try:
        state: Any = await asyncio.wrap_future(future.wrapped_future.future())
    except Exception as error:
        raise InfrastructureError(f"the engine task was lost: {gist(error)}") from error
    return await state.aresult()


@asynccontextmanager
async def _watching(prepared: PreparedFlow, spec: MicrobatchSpec, staged: int) -> AsyncGenerator[None]:
    """Keep the board of this process, if somebody displays one, up to date from the engine host."""
    board = current_board()
    if board is None:
        yield
        return

    async def watch() -> None:
        client = await asyncio.to_thread(_client, prepared)
        while True:
            await asyncio.sleep(WATCH_S)
            with contextlib.suppress(Exception):
                state = await asyncio.to_thread(client.poll, spec.id, timeout_s=0.0)
                board.update(spec.id, part_of(state, staged))

    watcher = asyncio.create_task(watch())
    try:
        yield
    finally:
        watcher.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await watcher


async def _cancel(
    prepared: PreparedFlow, spec: MicrobatchSpec, future: PrefectRayFuture[EngineResult], logger: logging.Logger
) -> None:
    """Tell the engine, and wait a little for the task to see it and end."""
    logger.info("Cancelling in the engine")
    with contextlib.suppress(Exception):
        await asyncio.to_thread(lambda: _client(prepared).cancel(spec.id))
        await asyncio.wait_for(asyncio.wrap_future(future.wrapped_future.future()), CANCEL_S)


def _client(prepared: PreparedFlow) -> HostClient:
    return host.connect(prepared.plan, namespace=cluster.NAMESPACE, runtime_env=cluster.worker_environment())


async def _publish(summary: MicrobatchSummary, table: str) -> None:
    await acreate_markdown_artifact(
        microbatch_report(summary, table, cluster.connect(home()).dashboard_url),
        description=f"{summary.present} present, {summary.failed} failed, {summary.dropped} dropped",
    )
    events.microbatch_ended(summary, table)
    board = current_board()
    if board is not None:
        board.update(
            summary.microbatch,
            Part(
                summary.sources,
                done=summary.sources if summary.committed else 0,
                failed=summary.failed,
                children=summary.children,
                children_failed=summary.children_failed,
                finished=True,
            ),
        )
