"""What an engine host and its clients say to each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from rayorch_flows.errors import InfrastructureError
from rayorch_flows.program.outcomes import Cause
from rayorch_flows.runtime.engine import PLACEMENT_TIMEOUT_S
from rayorch_flows.runtime.host.writer import Sink
from rayorch_flows.runtime.metrics import CallMetrics

RUNNING, PAUSED, DONE, ABORTED, CANCELLED = "running", "paused", "done", "aborted", "cancelled"
FINAL_STATES: Final = frozenset({DONE, ABORTED, CANCELLED})


class UnknownMicrobatchError(InfrastructureError):
    """The host does not know the microbatch: never attached, evicted long ago, or the host was restarted."""


@dataclass(frozen=True, slots=True)
class HostOptions:
    """Times in seconds: without a poll for ``lease_s`` a microbatch is paused, after ``evict_s`` cancelled; actors are
    given back when nothing was active for ``idle_s``."""

    lease_s: float = 30.0
    evict_s: float = 300.0
    idle_s: float = 300.0
    placement_timeout_s: float = PLACEMENT_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class MicrobatchSpec:
    """A microbatch to attach. ``rows`` are the original indices of the column entries; outcomes carry them."""

    id: str
    columns: tuple[list[Any], ...]
    rows: list[int]
    sink: Sink | None = None


@dataclass(frozen=True, slots=True)
class Attachment:
    """The attempt that the microbatch is in; ``joined`` if it was running already."""

    attempt: int
    joined: bool


@dataclass(frozen=True, slots=True)
class MicrobatchProgress:
    """How far one attempt of a microbatch is. ``state`` is done only when everything is written."""

    state: str
    attempt: int
    error: Cause | None
    sources_total: int
    sources_done: int
    sources_failed: int
    outcomes: dict[str, int]
    children_done: int
    children_failed: int
    calls: tuple[CallMetrics, ...]
    elapsed_s: float
    failures_sample: tuple[tuple[int, Cause], ...]
    written: int
