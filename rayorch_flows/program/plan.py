"""The compiled program: immutable, picklable, dense integer ids, no behaviour.

Ids index the tuples of ``Plan``: ``plan.ports[p].id == p``, and so for Domains, Calls and modules. Ports are in
topological order: a Port's inputs have smaller ids. Domain 0 is the root; a Domain's parent has a smaller id.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import IntEnum, StrEnum
from typing import Any, Final, TypeAlias

from rayorch_flows.program.recovery import RecoveryPolicy
from rayorch_flows.program.values import pickling

ROOT: Final = 0
NO_ID: Final = -1


class PortKind(IntEnum):
    """How a Port's Items come about; the comment gives the meaning of ``PortPlan.inputs``."""

    SOURCE = 0  # ()
    CALL = 1  # () - see PortPlan.call
    EXPAND = 2  # (group,) - group is a Port of the parent Domain
    FILTER = 3  # (source, mask)
    BROADCAST = 4  # (ancestor,)
    REDUCE = 5  # (value, members) - Ports of the child Domain
    SETTLE = 6  # (source,)


class Batching(StrEnum):
    """How ready Grains of one Call form a dispatch batch (paper, section 4.3)."""

    ELASTIC = "elastic"
    PARENT_BOUND = "parent_bound"


class OutputShape(StrEnum):
    """What ``forward`` returned, and so the shape of ``RunResult.outputs``."""

    SINGLE = "single"
    TUPLE = "tuple"


@dataclass(frozen=True, slots=True)
class SourceLine:
    """The user's line that made a Port or a Call."""

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}"


@dataclass(frozen=True, slots=True)
class DomainPlan:
    """One level of the hierarchy.

    ``groups`` are the Ports of the parent Domain whose list elements become this Domain's Entities (one for
    ``expand``, several for ``expand_aligned``); ``ports`` the EXPAND Ports of this Domain, in the same order.
    ``result`` is the Port whose outcomes describe this Domain's Entities in reports: the value Port of the first
    reduce over it, looked at under a settle; without a reduce the last Port made in the Domain; for the root
    Domain the first output.
    """

    id: int
    name: str
    parent: int
    depth: int
    groups: tuple[int, ...]
    ports: tuple[int, ...]
    result: int
    where: SourceLine | None = None


@dataclass(frozen=True, slots=True)
class PortPlan:
    """One logical edge. ``call`` and ``index`` are set for CALL Ports (index = output number) and SOURCE
    Ports (index = source column).

    ``as_value``: some Call argument, reduce or output consumes it as a value (directly or through structure);
    ``as_group``: the Domain it is expanded into, or NO_ID; ``as_mask``: some filter uses it as its mask.
    For FILTER, BROADCAST, SETTLE and REDUCE these three flags are False, NO_ID, False: they are resolved to the
    SOURCE, CALL or EXPAND Port that really holds the payload (``holder``; for REDUCE, itself).
    ``depth`` is the nesting of reduced lists in its value (0: an opaque payload).
    """

    id: int
    kind: PortKind
    domain: int
    name: str
    inputs: tuple[int, ...]
    call: int
    index: int
    holder: int
    as_value: bool
    as_group: int
    as_mask: bool
    depth: int
    where: SourceLine | None = None


@dataclass(frozen=True, slots=True)
class InputPlan:
    """One argument of a Call: positional, or passed by keyword if it has a ``name``."""

    port: int
    optional: bool = False
    name: str = ""


@dataclass(frozen=True, slots=True)
class CallPlan:
    """One configured use of a module. ``kwargs`` are the static keyword arguments, sorted by name."""

    id: int
    name: str
    module: int
    domain: int
    inputs: tuple[InputPlan, ...]
    outputs: tuple[int, ...]
    kwargs: tuple[tuple[str, Any], ...]
    where: SourceLine | None = None


@dataclass(frozen=True, slots=True)
class Options:
    """Physical options of a module: they never change what the records mean.

    ``slow_start`` is the first window w0 in Grains (0: off); ``max_in_flight`` the calls of one actor that are on
    their way, the running one included; ``max_ready_bytes`` the byte budget (0: none); ``actor`` every other option,
    passed on to Ray unchanged, sorted by name.
    """

    replicas: int = 1
    batch_size: int = 1
    batching: Batching = Batching.ELASTIC
    recovery: RecoveryPolicy = field(default_factory=RecoveryPolicy)
    slow_start: int = 8
    deadline_s: float | None = None
    max_in_flight: int = 2
    max_ready_bytes: int = 0
    actor: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class ModulePlan:
    """One RayModule: the Function, its constructor arguments and options; owns one actor pool."""

    id: int
    name: str
    function: Any
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    outputs: int
    options: Options
    where: SourceLine | None = None


Layout: TypeAlias = "int | tuple[Layout, ...]"
"""How ``forward`` nested its outputs: an index into ``Plan.outputs``, or a tuple of Layouts."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The whole program. ``sources`` and ``outputs`` are Port ids; an output may repeat, and may be in any Domain.

    ``semantic_fingerprint`` names what the records mean: structure, code, arguments. ``physical_fingerprint`` adds
    names and options. Both are the same in another process.
    """

    name: str
    domains: tuple[DomainPlan, ...]
    ports: tuple[PortPlan, ...]
    calls: tuple[CallPlan, ...]
    modules: tuple[ModulePlan, ...]
    sources: tuple[int, ...]
    outputs: tuple[int, ...]
    shape: OutputShape
    semantic_fingerprint: str
    physical_fingerprint: str
    layout: Layout = 0

    def __hash__(self) -> int:
        """By the physical fingerprint: options and arguments may hold dicts."""
        return hash(self.physical_fingerprint)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles through cloudpickle, so that Functions defined in a script or a test travel too."""
        return _load_plan, (pickling.dumps(tuple(getattr(self, f.name) for f in fields(self))),)


def _load_plan(payload: bytes) -> Plan:
    return Plan(*pickling.loads(payload))
