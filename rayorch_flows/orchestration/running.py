"""The microbatch flow runs of this process, and how somebody asks one of them to stop.

A flow run that has a process of its own is stopped by whoever started the process. One that runs inside its parent's
process has nobody: cancelling it in the UI only changes its state. So the parent looks at the states of the runs in
its process, and tells those that were cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import StateType

LOOK_EVERY_S: Final = 2.0
_STOPPED: Final = frozenset({StateType.CANCELLING, StateType.CANCELLED})


@dataclass(slots=True)
class Family:
    """A parent flow run and the microbatch runs that run inside its process, each with its request to stop."""

    parent: UUID
    stopping: bool = False
    children: dict[UUID, asyncio.Event] = field(default_factory=dict[UUID, asyncio.Event])

    def stop_all(self) -> None:
        self.stopping = True
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
    watcher = asyncio.create_task(_watch(family))
    try:
        yield family
    finally:
        _family.reset(token)
        watcher.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watcher


@contextmanager
def stoppable(flow_run: UUID | None) -> Generator[asyncio.Event]:
    """The request to stop this flow run; it never comes to one that has a process of its own."""
    asked = asyncio.Event()
    family = _family.get()
    if family is None or flow_run is None:
        yield asked
        return
    if family.stopping:
        asked.set()
    family.children[flow_run] = asked
    try:
        yield asked
    finally:
        del family.children[flow_run]


async def _watch(family: Family) -> None:
    """One request for the whole family, whatever its size, every other second."""
    async with get_client() as client:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            with contextlib.suppress(Exception):
                ids = [family.parent, *family.children]
                runs = await client.read_flow_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=ids)))
                for run in runs:
                    if run.state_type not in _STOPPED:
                        continue
                    if run.id == family.parent:
                        family.stop_all()
                    elif run.id in family.children:
                        family.children[run.id].set()
