"""The microbatch flow runs of this process, and how somebody asks one of them to stop.

Cancelling a run in the UI only changes its state. A worker stops the process that it has started for the run; one that
runs inside its parent's process, or whose worker was killed, has nobody who would. So each process looks at the states
of the runs in it, and tells those that were cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import StateType
from prefect.states import Cancelled

CANCELLED: Final = "cancelled: what is finished is staged, the next ingest goes on from there"
LOOK_EVERY_S: Final = 2.0
CONFIRM_S: Final = 5.0
_STOPPED: Final = frozenset({StateType.CANCELLING, StateType.CANCELLED})


@dataclass(slots=True)
class Family:
    """The microbatch runs in this process, each with its request to stop, and their parent if it is here too."""

    parent: UUID | None
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    children: dict[UUID, asyncio.Event] = field(default_factory=dict[UUID, asyncio.Event])

    @property
    def stopping(self) -> bool:
        return self.asked.is_set()

    def stop_all(self) -> None:
        self.asked.set()
        for asked in self.children.values():
            asked.set()


_family: ContextVar[Family | None] = ContextVar("rayorch_flows_family", default=None)


def inside_its_parent() -> bool:
    """Whether this flow run shares the process of its ingest."""
    return _family.get() is not None


@asynccontextmanager
async def watched(parent: UUID) -> AsyncGenerator[Family]:
    """Microbatch flows called inside are told when somebody cancels them, or their parent."""
    family = Family(parent)
    token = _family.set(family)
    try:
        async with _watching(family), _confirming(parent):
            yield family
    finally:
        _family.reset(token)


@asynccontextmanager
async def stoppable(flow_run: UUID | None) -> AsyncGenerator[asyncio.Event]:
    """The request to stop this flow run."""
    asked = asyncio.Event()
    family = _family.get()
    if flow_run is None:
        yield asked
    elif family is None:
        async with _watching(Family(None, children={flow_run: asked})), _confirming(flow_run):
            yield asked
    else:
        if family.stopping:
            asked.set()
        family.children[flow_run] = asked
        try:
            yield asked
        finally:
            del family.children[flow_run]


@asynccontextmanager
async def _watching(family: Family) -> AsyncGenerator[None]:
    watcher = asyncio.create_task(_watch(family))
    try:
        yield
    finally:
        watcher.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watcher


@asynccontextmanager
async def _confirming(flow_run: UUID) -> AsyncGenerator[None]:
    """When a worker stops this process because the run was cancelled, say that it is.

    The worker itself does so seconds later, after it has loaded the flow once more in search of hooks.
    """
    try:
        yield
    except asyncio.CancelledError:
        with contextlib.suppress(Exception):
            async with asyncio.timeout(CONFIRM_S), get_client() as client:
                found = await client.read_flow_run(flow_run)
                if found.state_type is StateType.CANCELLING:
                    await client.set_flow_run_state(flow_run, Cancelled(message=CANCELLED))
        raise


async def _watch(family: Family) -> None:
    """One request for the whole family, whatever its size, every other second."""
    async with get_client() as client:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            with contextlib.suppress(Exception):
                ids = [*family.children, *([] if family.parent is None else [family.parent])]
                runs = await client.read_flow_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=ids)))
                for run in runs:
                    if run.state_type not in _STOPPED:
                        continue
                    if run.id == family.parent:
                        family.stop_all()
                    elif run.id in family.children:
                        family.children[run.id].set()
