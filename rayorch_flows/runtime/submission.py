"""A microbatch on its way through the engine: what is submitted, who hears about it, how it ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from rayorch_flows.errors import RayorchFlowsError
from rayorch_flows.program.outcomes import Cause
from rayorch_flows.runtime.metrics import CallMetrics, RunTally
from rayorch_flows.runtime.payloads.wire import Raised
from rayorch_flows.runtime.results import Delivery


class EndState(StrEnum):
    """How a microbatch ended."""

    DONE = "done"
    ABORTED = "aborted"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class End:
    """The end of a microbatch, after its last delivery."""

    microbatch: str
    state: EndState
    error: RayorchFlowsError | None
    cause: Cause | None
    grains: int
    elapsed_s: float


class Listener(Protocol):
    """Hears about one microbatch, on the engine's thread: it must not block."""

    def deliver(self, delivery: Delivery) -> None: ...

    def ended(self, end: End) -> None: ...


@dataclass(slots=True, eq=False)
class Submission:
    """A microbatch for the engine: source columns, the original index of each row, and who hears about it.

    ``snapshot`` holds fresh metrics of every Call, a few times a second, if ``watched``; results say what became of
    the ``children`` of a source item only where somebody wants to know. ``last``: its listener has no other to come, so
    that its tail may be spread over all actors.
    """

    id: str
    columns: tuple[Sequence[Any], ...]
    indices: list[int]
    listener: Listener
    tally: RunTally
    attempt: int = 1
    watched: bool = False
    children: bool = True
    last: bool = True
    snapshot: tuple[CallMetrics, ...] = ()


@dataclass(slots=True, eq=False)
class Active:
    """A microbatch in the machine. ``rows`` are the positions in the submission of the attempt's rows."""

    submission: Submission
    attempt: int
    rows: list[int]
    started: float
    open: set[int] = field(default_factory=set[int])
    restarts: int = 0
    grains: int = 0
    raised: Raised | None = None
