"""A microbatch in the engine, seen from its flow run: submit the one task, wait for it, cancel it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import cloudpickle
from prefect_ray.context import remote_options
from prefect_ray.task_runners import PrefectRayFuture

from rayorch_flows.errors import InfrastructureError
from rayorch_flows.orchestration.cluster import connection
from rayorch_flows.orchestration.cluster.engine_task import EngineRequest, EngineResult, part_of, run_in_engine
from rayorch_flows.orchestration.ingest.prepared_flow import PreparedFlow
from rayorch_flows.orchestration.ingest.stored_microbatch import StoredMicrobatch
from rayorch_flows.orchestration.reporting.exception_text import gist
from rayorch_flows.orchestration.reporting.progress import Part, current_board
from rayorch_flows.orchestration.reporting.summary import CallSummary, MicrobatchSummary
from rayorch_flows.orchestration.settings.home import home
from rayorch_flows.orchestration.settings.places import ClusterPlace
from rayorch_flows.program.outcomes import Cause, CauseKind
from rayorch_flows.runtime.host import client as host

if TYPE_CHECKING:
    from rayorch_flows.orchestration.cluster.connection import ClusterInfo
    from rayorch_flows.runtime.host.client import HostClient, MicrobatchSpec

WATCH_S: Final = 0.4
CANCEL_S: Final = 8.0
_Logger = logging.Logger | logging.LoggerAdapter[Any]


class StopAsked(Exception):
    """Somebody cancelled the flow run; the engine has been told."""


async def run_in_engine_host(
    stored: StoredMicrobatch,
    prepared: PreparedFlow,
    place: ClusterPlace | None,
    summary: MicrobatchSummary,
    logger: _Logger,
    asked: asyncio.Event,
) -> Cause | None:
    """Run what is not staged yet on the cluster; return the cause if the engine aborted the microbatch."""
    board = current_board()
    if board is not None:
        board.update(stored.microbatch, Part(stored.total, done=stored.staged))
    if not stored.rows:
        logger.info("All %s sources are staged already", stored.total)
        return None
    if asked.is_set():
        raise StopAsked
    info = await asyncio.to_thread(connection.connect, home(), place)
    connection.restore_sigterm()
    spec = stored.spec()
    request = EngineRequest(prepared.plan, info.namespace, spec, info.runtime_env, prepared.child_noun, stored.staged)
    with remote_options(num_cpus=0, max_retries=0):
        future: PrefectRayFuture[EngineResult] = run_in_engine.submit(cloudpickle.dumps(request))  # pyright: ignore[reportAssignmentType]
    try:
        async with _watching(info, prepared, spec, stored.staged):
            result = await _result(future, asked)
    except (asyncio.CancelledError, StopAsked):
        await _cancel(info, prepared, spec, future, logger)
        raise
    summary.calls = [CallSummary.of(call) for call in result.calls]
    summary.engine_s = round(summary.engine_s + result.engine_s, 3)
    if result.state == "cancelled":
        raise InfrastructureError("the microbatch was cancelled in the engine", next_step="run it again")
    return None if result.state == "done" else result.error or Cause(CauseKind.FUNCTION_ERROR, "the engine aborted")


async def _result(future: PrefectRayFuture[EngineResult], asked: asyncio.Event) -> EngineResult:
    """Wait for the task without blocking the loop, so that a cancellation arrives at once."""
    waiting = asyncio.ensure_future(_outcome(future))
    stop = asyncio.ensure_future(asked.wait())
    try:
        await asyncio.wait({waiting, stop}, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            raise StopAsked
        state = waiting.result()
    except (asyncio.CancelledError, StopAsked):
        raise
    except Exception as error:
        raise InfrastructureError(f"the engine task was lost: {gist(error)}") from error
    finally:
        for each in (waiting, stop):
            each.cancel()
    return await state.aresult()


async def _outcome(future: PrefectRayFuture[EngineResult]) -> Any:
    reference: Any = future.wrapped_future
    return await asyncio.wrap_future(reference.future())


@asynccontextmanager
async def _watching(
    info: ClusterInfo, prepared: PreparedFlow, spec: MicrobatchSpec, staged: int
) -> AsyncGenerator[None]:
    """Keep the board of this process, if somebody displays one, up to date from the engine host."""
    board = current_board()
    if board is None:
        yield
        return

    async def watch() -> None:
        client = await asyncio.to_thread(_client, info, prepared)
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
    info: ClusterInfo,
    prepared: PreparedFlow,
    spec: MicrobatchSpec,
    future: PrefectRayFuture[EngineResult],
    logger: _Logger,
) -> None:
    """Tell the engine, and wait a little for the task to see it and end."""
    logger.info("Cancelling in the engine")
    with contextlib.suppress(Exception):
        await asyncio.to_thread(lambda: _client(info, prepared).cancel(spec.id))
        await asyncio.wait_for(_outcome(future), CANCEL_S)


def _client(info: ClusterInfo, prepared: PreparedFlow) -> HostClient:
    return host.connect(prepared.plan, namespace=info.namespace, runtime_env=info.runtime_env)
