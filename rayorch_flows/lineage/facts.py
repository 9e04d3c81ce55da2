"""The facts of one microbatch in dense arrays, and the queues that go with them.

An Entity is an index into its Domain's arrays. The children of one parent are one contiguous range, in ordinal order,
so an ordinal is a subtraction and an Expansion two integers. Payload handles lie beside the facts, never inside.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import NamedTuple

from rayorch_flows.lineage.index import PlanIndex
from rayorch_flows.lineage.ready import ReadyQueue
from rayorch_flows.program.outcomes import Cause, CauseKind
from rayorch_flows.program.plan import Batching, Options, PortKind

NOT_EXPANDED = -1
NO_BLOCK = -3
"""Handle of an Item that has no payload, or whose payload nobody needs any more."""


class Piece(NamedTuple):
    """``rows`` consecutive rows of a block, from ``first``."""

    block: int
    first: int
    rows: int


@dataclass(slots=True)
class CallState:
    """Grains of one Call in one microbatch, and what happened to them.

    ``urgent`` and ``tail`` are the recovery queues: exact groups of Grains to dispatch alone, before and after the
    normal queue. ``generation`` holds only Grains that were retried; all others are at 0. ``failures`` are those
    ``failed``, by the kind of their cause.
    """

    queue: ReadyQueue
    phase: bytearray = field(default_factory=bytearray)
    generation: dict[int, int] = field(default_factory=dict[int, int])
    udf_failures: dict[int, int] = field(default_factory=dict[int, int])
    infra_failures: dict[int, int] = field(default_factory=dict[int, int])
    urgent: deque[list[int]] = field(default_factory=deque[list[int]])
    tail: deque[list[int]] = field(default_factory=deque[list[int]])
    ready: int = 0
    in_flight: int = 0
    sealed: int = 0
    failed: int = 0
    suppressed: int = 0
    dropped: int = 0
    retries: int = 0
    batches: int = 0
    batch_rows: int = 0
    failures: Counter[CauseKind] = field(default_factory=Counter[CauseKind])

    @property
    def waiting(self) -> int:
        return len(self.phase) - self.ready - self.in_flight - self.sealed

    @property
    def unsealed(self) -> int:
        return len(self.phase) - self.sealed


@dataclass(slots=True)
class DomainState:
    """Entities of one Domain. ``first``, ``size`` and ``expansion`` are indexed by the parent Domain's Entities."""

    parent: array[int] = field(default_factory=lambda: array("i"))
    root: array[int] = field(default_factory=lambda: array("i"))
    first: array[int] = field(default_factory=lambda: array("i"))
    size: array[int] = field(default_factory=lambda: array("i"))
    expansion: bytearray = field(default_factory=bytearray)
    blamed: dict[int, Cause] = field(default_factory=dict[int, Cause])

    def children(self, parent: int) -> range:
        """The child Entities of ``parent``, in ordinal order (none if its Expansion is not resolved)."""
        first = self.first[parent]
        return range(first, first + self.size[parent])


@dataclass(slots=True)
class PortState:
    """Items of one Port.

    ``block``, ``row`` and ``left`` (consumers that still need the payload) are filled for holders only; ``lengths``,
    ``pieces`` (where the list elements lie) and ``element_mask`` for expanded Ports; ``mask`` for Ports that are masks;
    ``blamed`` for Items that failed by themselves or by a barrier.
    """

    outcome: bytearray = field(default_factory=bytearray)
    block: array[int] = field(default_factory=lambda: array("q"))
    row: array[int] = field(default_factory=lambda: array("i"))
    left: array[int] = field(default_factory=lambda: array("H"))
    mask: bytearray = field(default_factory=bytearray)
    lengths: dict[int, int] = field(default_factory=dict[int, int])
    pieces: dict[int, list[Piece]] = field(default_factory=dict[int, list[Piece]])
    element_mask: dict[int, bytes] = field(default_factory=dict[int, bytes])
    blamed: dict[int, Cause] = field(default_factory=dict[int, Cause])


class Microbatch:
    """All state of one attempt at one microbatch."""

    __slots__ = (
        "attempt",
        "calls",
        "closing",
        "domains",
        "id",
        "index",
        "members_seen",
        "open",
        "order",
        "paused",
        "ports",
        "rows",
        "sweep",
        "taken",
        "terminal",
        "values_seen",
    )

    def __init__(self, index: PlanIndex, *, id: str, attempt: int, order: int, rows: int) -> None:
        plan = index.plan
        self.index = index
        self.id = id
        self.attempt = attempt
        self.order = order
        self.rows = rows
        self.paused = False
        self.domains = [DomainState() for _ in plan.domains]
        self.ports = [PortState() for _ in plan.ports]
        self.calls = [CallState(_queue(plan.modules[call.module].options)) for call in plan.calls]
        # Where each reduce stands in its scan over members and values, by parent Entity.
        self.members_seen = {p.id: array("i") for p in plan.ports if p.kind is PortKind.REDUCE}
        self.values_seen = {p.id: array("i") for p in plan.ports if p.kind is PortKind.REDUCE}
        self.open = [0] * rows  # unsealed Grains under each source item
        self.closing: list[int] = []  # source items whose last Grain may just have been sealed
        self.terminal = bytearray(rows)
        self.taken = bytearray(rows)
        self.sweep = bytearray(rows)  # 1: a consumer was sealed without running, so payloads may be left over

    def ordinals(self, domain: int, entity: int) -> tuple[int, ...]:
        """The path of zero-based ordinals from the source item down to ``entity`` (empty for a root Entity)."""
        path: list[int] = []
        plan = self.index.plan
        while domain:
            state = self.domains[domain]
            parent = state.parent[entity]
            path.append(entity - state.first[parent])
            entity, domain = parent, plan.domains[domain].parent
        return tuple(reversed(path))

    def entity(self, domain: int, row: int, ordinals: tuple[int, ...]) -> int:
        """The Entity at a path of ordinals under source item ``row``."""
        entity = row
        for step, ordinal in zip(self.index.domain_path[domain], ordinals, strict=True):
            children = self.domains[step].children(entity)
            entity = children[ordinal]
        return entity

    def ancestor(self, domain: int, entity: int, ancestor_domain: int) -> int:
        """The Entity of ``ancestor_domain`` above ``entity``."""
        while domain != ancestor_domain:
            entity = self.domains[domain].parent[entity]
            domain = self.index.plan.domains[domain].parent
        return entity

    def descendants(self, path: tuple[int, ...], entities: list[int] | range) -> list[int] | range:
        """The Entities reached from ``entities`` by going down the Domains of ``path``, in order."""
        for domain in path:
            state = self.domains[domain]
            if len(entities) == 1:
                entities = state.children(entities[0])
            else:
                entities = [child for parent in entities for child in state.children(parent)]
        return entities


def _queue(options: Options) -> ReadyQueue:
    """The ready queue of a Call with such options: a turn is what its actors can hold."""
    return ReadyQueue(
        window=options.slow_start,
        turn=options.replicas * options.max_in_flight * options.batch_size,
        parent_bound=options.batching is Batching.PARENT_BOUND,
    )
