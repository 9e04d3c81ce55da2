"""Random data and random outcomes, fixed per Grain, and payloads that show where they came from.

A value is a symbol: the Call's output and its arguments, interned, so that two values are equal only if they have
the same whole history. A handle that went to the wrong row, a swapped ordinal or a lost hole cannot go unseen.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from rayorch_flows.lineage.protocol import HOLE_BLOCK, MISSING_BLOCK, NOT_A_LIST, Column
from rayorch_flows.program.outcomes import MISSING, CauseKind, GroupFailure, Hole, RecordFailure
from rayorch_flows.program.plan import NO_ID, Plan
from tests.reference import GrainKey, Path

LENGTHS = (1, 2, 0, 3, 2, 1, 4, 0, 2, 3, 5, 1, 2, 3, 6, 14)
SHORT = (1, 2, 0, 1, 2, 3)


ENGINE_WORDS = re.compile("^expand_aligned needs lists|was dropped for a member")
"""Causes that the engine words itself; the reference leaves their message empty."""


class Symbol:
    """One interned value."""

    __slots__ = ("key",)

    def __init__(self, key: tuple[Any, ...]) -> None:
        self.key = key

    def __repr__(self) -> str:
        return f"<{' '.join(map(str, self.key))}>"


class Symbols:
    """Values of equal history are the same object."""

    def __init__(self) -> None:
        self.known: dict[tuple[Any, ...], Symbol] = {}

    def __call__(self, *key: Any) -> Symbol:
        symbol = self.known.get(key)
        if symbol is None:
            symbol = self.known[key] = Symbol(key)
        return symbol


def frozen(value: Any) -> Any:
    return tuple(frozen(item) for item in value) if isinstance(value, list) else value


@dataclass(frozen=True)
class Rates:
    """Per 256 Grains: how many fail, fail their group, take their attempt down, or return ragged aligned lists."""

    record: int = 0
    group: int = 0
    poison: int = 0
    masked: int = 100
    source: int = 0
    ragged: int = 0


@dataclass(frozen=True)
class Poison:
    """A Grain whose attempts never succeed: ``raise``, ``kill`` or ``hang``; it stops at attempt ``until``."""

    how: str
    until: int


class Outcomes:
    """The oracle of one microbatch: everything follows from a table of bytes and the Grain's identity."""

    def __init__(
        self, plan: Plan, table: bytes = b"", rates: Rates = Rates(), name: str = "mb0", salt: int = 0
    ) -> None:
        self.plan = plan
        self.symbols = Symbols()
        self.table = table or b"\0"
        self.rates = rates
        self.name = name
        self.salt = salt
        self.isolated: dict[GrainKey, RecordFailure] = {}

    def roll(self, *what: int) -> int:
        mixed = self.salt
        for part in what:
            mixed = (mixed * 1000003 ^ (part + 77)) & 0xFFFFFFFF
            mixed ^= mixed >> 13
        return self.table[mixed % len(self.table)]

    def hit(self, rate: int, *what: int) -> bool:
        """False on a zero byte."""
        return 255 - rate < self.roll(*what)

    def length(self, domain: int, path: Path, *what: int) -> int:
        lengths = LENGTHS if len(path) == 1 else SHORT
        return lengths[self.roll(1, domain, *path, *what) % len(lengths)]

    def elements(self, domain: int, group: int, length: int, path: Path, made: tuple[Any, ...]) -> list[Any]:
        """A list to expand: its elements are booleans where they serve as masks."""
        index = [self.plan.ports[p].holder for p in self.plan.domains[domain].groups].index(group)
        if self.plan.ports[self.plan.domains[domain].ports[index]].as_mask:
            return [not self.hit(self.rates.masked, 10, group, i, *path) for i in range(length)]
        return [self.symbols(*made, i) for i in range(length)]

    # -- tests.reference.Oracle ----------------------------------------------------------------------------------

    def source(self, column: int, row: int) -> Any:
        port = self.plan.ports[self.plan.sources[column]]
        if port.as_group != NO_ID:
            if self.hit(self.rates.source, 2, column, row):
                return RecordFailure(f"source {column}/{row}", CauseKind.CONTRACT)
            made = ("source", self.name, column, row)
            return self.elements(port.as_group, port.id, self.length(port.as_group, (row,)), (row,), made)
        if port.as_mask:
            return not self.hit(self.rates.masked, 3, column, row)
        return self.symbols("source", self.name, column, row)

    def grain(self, call: int, path: Path, args: tuple[Any, ...]) -> Any:
        key = (call, path)
        if key in self.isolated:
            return self.isolated[key]
        for rate, failure in ((self.rates.record, RecordFailure), (self.rates.group, GroupFailure)):
            if self.hit(rate, 4 if failure is RecordFailure else 5, call, *path):
                kind = list(CauseKind)[self.roll(6, call, *path) % len(CauseKind)]
                return failure(f"{self.name}/{call}/{path}", kind, bool(self.roll(7, call, *path) % 2))
        made = (self.name, call, *(frozen(arg) for arg in args))
        outputs: list[Any] = []
        for port in (self.plan.ports[p] for p in self.plan.calls[call].outputs):
            if port.as_group != NO_ID:
                ragged = (port.index,) if self.hit(self.rates.ragged, 11, call, *path) else ()
                length = self.length(port.as_group, path, call, *ragged)
                outputs.append(self.elements(port.as_group, port.id, length, path, ("element", port.index, *made)))
            elif port.as_mask:
                outputs.append(not self.hit(self.rates.masked, 3, call, port.index, *path))
            else:
                outputs.append(self.symbols("output", port.index, *made))
        return tuple(outputs)

    def poison(self, call: int, path: Path) -> Poison | None:
        if not self.hit(self.rates.poison, 8, call, *path):
            return None
        which = self.roll(9, call, *path)
        return Poison(("raise", "raise", "kill", "hang")[which % 4], which // 4 % 2 + 1)


# -- handles to values -----------------------------------------------------------------------------------------------


def decode(column: Column, payloads: dict[int, list[Any]]) -> list[Any]:
    """The values that a column of handles stands for, one a row."""
    leaves = iter([_leaf(column, payloads, block, row) for block, row in zip(column.blocks, column.rows, strict=True)])
    if not column.depth:
        return list(leaves)
    levels = [iter(lengths) for lengths in column.lengths]
    assert len(levels) == column.depth, (len(levels), column.depth)

    def read(level: int) -> Any:
        if level == column.depth:
            return next(leaves)
        length = next(levels[level])
        return next(leaves) if length == NOT_A_LIST else [read(level + 1) for _ in range(length)]

    values = [read(0) for _ in column.lengths[0]]
    assert all(next(it, None) is None for it in [leaves, *levels]), "a column with entries left over"
    return values


def _leaf(column: Column, payloads: dict[int, list[Any]], block: int, row: int) -> Any:
    if block == MISSING_BLOCK:
        return MISSING
    if block == HOLE_BLOCK:
        hole = column.holes[row]
        return replace(hole, cause="") if isinstance(hole, Hole) and ENGINE_WORDS.search(hole.cause) else hole
    return payloads[block][row]


def isolated(cause: Any) -> RecordFailure:
    return RecordFailure(cause.message, cause.kind, cause.retryable)
