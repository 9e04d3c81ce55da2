"""The reference interpreter: what a program means, with no scheduling in it.

Recursive and sequential. Every fact is a function of the Plan, the source rows and one oracle that fixes what each
Grain returns, so whatever a schedule does, the engine has to end with these facts. It shares no code with the engine.

Only one thing may depend on the schedule: which siblings a barrier still caught. The interpreter is told them
(``caught``: Grain -> the Grain whose GroupFailure raised the barrier) and replays them; ``illegal_catches`` proves
each of them legal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from rayorch_flows.program.outcomes import (
    MISSING,
    Cause,
    CauseKind,
    GroupFailure,
    Hole,
    ItemOutcome,
    RecordFailure,
)
from rayorch_flows.program.plan import NO_ID, ROOT, Plan, PortKind

PRESENT, DROPPED, FAILED, SUPPRESSED = (
    ItemOutcome.PRESENT,
    ItemOutcome.DROPPED,
    ItemOutcome.FAILED,
    ItemOutcome.SUPPRESSED,
)
Path = tuple[int, ...]
"""An Entity: the source row, then the ordinals down to it."""
GrainKey = tuple[int, Path]
"""A Grain: Call id and Entity."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A terminal Item; an Expansion too, with the number of its children as the value."""

    outcome: ItemOutcome
    value: Any = None
    cause: Cause | None = None


class Oracle(Protocol):
    def source(self, column: int, row: int) -> Any:
        """The value of a source Item, or a RecordFailure."""

    def grain(self, call: int, path: Path, args: tuple[Any, ...]) -> Any:
        """What the Function returns for one Grain: a tuple of outputs, a RecordFailure or a GroupFailure."""


class Reference:
    def __init__(self, plan: Plan, oracle: Oracle, caught: Mapping[GrainKey, Path] | None = None) -> None:
        self.plan = plan
        self.oracle = oracle
        self.caught = {} if caught is None else caught
        self.items: dict[tuple[int, Path], Fact] = {}
        self.returned: dict[GrainKey, Any] = {}  # executed Grains only

    # -- facts ---------------------------------------------------------------------------------------------------

    def item(self, port: int, path: Path) -> Fact:
        key = (port, path)
        if key not in self.items:
            self.items[key] = self._item(port, path)
        return self.items[key]

    def expansion(self, domain: int, parent: Path) -> Fact:
        groups = [self.item(port, parent) for port in self.plan.domains[domain].groups]
        if groups[0].outcome is DROPPED:
            return Fact(DROPPED)
        if groups[0].outcome is not PRESENT:
            return Fact(FAILED, None, groups[0].cause)
        lengths = {len(group.value) for group in groups}
        if len(lengths) > 1:
            at = self.plan.domains[self.plan.domains[domain].parent].name
            return Fact(FAILED, None, Cause(CauseKind.CONTRACT, "", "", at, parent[1:]))
        return Fact(PRESENT, lengths.pop())

    def children(self, domain: int, parent: Path) -> list[Path]:
        expansion = self.expansion(domain, parent)
        return [(*parent, i) for i in range(expansion.value)] if expansion.outcome is PRESENT else []

    def entities(self, domain: int, row: int) -> list[Path]:
        if domain == ROOT:
            return [(row,)]
        parents = self.entities(self.plan.domains[domain].parent, row)
        return [child for parent in parents for child in self.children(domain, parent)]

    def args(self, call: int, path: Path) -> tuple[Any, ...] | Fact:
        """The arguments of a Grain, or the fact that its outputs become without it being run."""
        inputs = [(i, self.item(i.port, path)) for i in self.plan.calls[call].inputs]
        for _, fact in inputs:
            if fact.outcome in (FAILED, SUPPRESSED):
                return Fact(SUPPRESSED, None, fact.cause)
        if any(fact.outcome is DROPPED and not i.optional for i, fact in inputs):
            return Fact(DROPPED)
        return tuple(MISSING if fact.outcome is DROPPED else fact.value for _, fact in inputs)

    # -- rules ---------------------------------------------------------------------------------------------------

    def _item(self, port: int, path: Path) -> Fact:
        plan = self.plan.ports[port]
        match plan.kind:
            case PortKind.SOURCE:
                value = self.oracle.source(plan.index, path[0])
                return self._failed(NO_ID, path, value) if isinstance(value, RecordFailure) else Fact(PRESENT, value)
            case PortKind.CALL:
                result = self._call(plan.call, path)
                return result if isinstance(result, Fact) else Fact(PRESENT, result[plan.index])
            case PortKind.EXPAND:
                return Fact(PRESENT, self.item(plan.inputs[0], path[:-1]).value[path[-1]])
            case PortKind.FILTER:
                source = self.item(plan.inputs[0], path)
                if source.outcome is not PRESENT:
                    return source
                mask = self.item(plan.inputs[1], path)
                if mask.outcome is not PRESENT:
                    return mask
                return source if mask.value else Fact(DROPPED)
            case PortKind.BROADCAST:
                ancestor = self.plan.ports[plan.inputs[0]].domain
                return self.item(plan.inputs[0], path[: self.plan.domains[ancestor].depth + 1])
            case PortKind.REDUCE:
                return self._reduce(plan.inputs[0], plan.inputs[1], path)
            case PortKind.SETTLE:
                source = self.item(plan.inputs[0], path)
                if source.cause is not None and source.outcome in (FAILED, SUPPRESSED):
                    return Fact(PRESENT, Hole(source.cause.kind, source.cause.message))
                return source

    def _call(self, call: int, path: Path) -> Fact | tuple[Any, ...]:
        trigger = self.caught.get((call, path))
        if trigger is not None:
            return Fact(SUPPRESSED, None, self._failed(call, trigger, self._returned(call, trigger)).cause)
        returned = self._returned(call, path)
        if isinstance(returned, RecordFailure | GroupFailure):
            return self._failed(call, path, returned)
        return returned

    def _returned(self, call: int, path: Path) -> Any:
        key = (call, path)
        if key not in self.returned:
            args = self.args(call, path)
            if isinstance(args, Fact):
                return args
            self.returned[key] = self.oracle.grain(call, path, args)
        return self.returned[key]

    def _reduce(self, value: int, members: int, path: Path) -> Fact:
        domain = self.plan.ports[value].domain
        expansion = self.expansion(domain, path)
        if expansion.outcome is not PRESENT:
            return Fact(DROPPED if expansion.outcome is DROPPED else SUPPRESSED, None, expansion.cause)
        children = self.children(domain, path)
        for child in children:
            member = self.item(members, child)
            if member.outcome in (FAILED, SUPPRESSED):
                return Fact(SUPPRESSED, None, member.cause)
        values: list[Any] = []
        for child in children:
            if self.item(members, child).outcome is PRESENT:
                item = self.item(value, child)
                if item.outcome is DROPPED:
                    return Fact(SUPPRESSED, None, self._dropped_survivor(value, child))
                if item.outcome is not PRESENT:
                    return Fact(SUPPRESSED, None, item.cause)
                values.append(item.value)
        return Fact(PRESENT, values)

    def _dropped_survivor(self, value: int, child: Path) -> Cause:
        """A survivor without a value: nothing failed before it, so it is itself the root of the suppression."""
        domain = self.plan.domains[self.plan.ports[value].domain]
        return Cause(CauseKind.CONTRACT, "", "", domain.name, child[1:])

    def _failed(self, call: int, path: Path, failure: Any) -> Fact:
        name = "" if call == NO_ID else self.plan.calls[call].name
        domain = self.plan.domains[ROOT if call == NO_ID else self.plan.calls[call].domain].name
        return Fact(FAILED, None, Cause(failure.kind, str(failure.cause), name, domain, path[1:], failure.retryable))

    # -- what the engine reports ---------------------------------------------------------------------------------

    def outputs(self, row: int) -> list[Fact]:
        """One fact an output; for a Port of a child Domain the facts of all its Items below the source item."""
        return [
            self.item(port, (row,)) if domain == ROOT else Fact(PRESENT, [self.item(port, path) for path in paths])
            for port, domain, paths in (
                (port, self.plan.ports[port].domain, self.entities(self.plan.ports[port].domain, row))
                for port in self.plan.outputs
            )
        ]

    def descendants(self, row: int) -> Iterator[tuple[int, Path, Fact]]:
        """Every Entity below a source item, with the Item that describes it (looked at under a settle)."""
        for domain in self.plan.domains[1:]:
            port = domain.result
            while self.plan.ports[port].kind is PortKind.SETTLE:
                port = self.plan.ports[port].inputs[0]
            for path in self.entities(domain.id, row):
                yield domain.id, path, self.item(port, path)

    def illegal_catches(self) -> list[tuple[GrainKey, str]]:
        """Barrier suppressions that no schedule could have made, with the reason; their Grains' siblings decide."""
        illegal: list[tuple[GrainKey, str]] = []
        for (call, path), trigger in self.caught.items():
            if self.plan.calls[call].domain == ROOT:
                illegal.append(((call, path), "a root Entity has no siblings"))
            elif trigger == path or trigger[:-1] != path[:-1]:
                illegal.append(((call, path), f"{trigger} is no sibling"))
            elif (call, trigger) in self.caught or not isinstance(self._returned(call, trigger), GroupFailure):
                illegal.append(((call, path), f"{trigger} raised no barrier"))
        return illegal
