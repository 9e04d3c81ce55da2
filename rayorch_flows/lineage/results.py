"""What a terminal source item became: its outputs, and every Entity below it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from rayorch_flows.lineage.causes import cause_of
from rayorch_flows.lineage.columns import append, append_hole, append_values, empty_column
from rayorch_flows.lineage.facts import Microbatch
from rayorch_flows.lineage.protocol import ChildOutcome, Column, Lost, SourceResult
from rayorch_flows.program.outcomes import OUTCOMES, Cause, ItemOutcome, OutcomeCode
from rayorch_flows.program.plan import ROOT, PortKind


def source_result(microbatch: Microbatch, row: int, *, children: bool = True) -> SourceResult:
    """Outcomes, causes and handles of the outputs at source item ``row``, and its children."""
    plan = microbatch.index.plan
    outcomes: list[ItemOutcome] = []
    causes: list[Cause | None] = []
    columns: list[Column | None] = []
    for port in plan.outputs:
        if plan.ports[port].domain != ROOT:
            outcomes.append(ItemOutcome.PRESENT)
            causes.append(None)
            columns.append(_items_below(microbatch, port, row))
            continue
        outcome = OUTCOMES[microbatch.ports[port].outcome[row]]
        assert outcome is not None, f"source item {row} is not terminal"
        outcomes.append(outcome)
        causes.append(cause_of(microbatch, port, row))
        column = None
        if outcome is ItemOutcome.PRESENT:
            column = empty_column(plan.ports[port].depth)
            append(column, microbatch, port, [row])
        columns.append(column)
    below = tuple(_children(microbatch, row)) if children else ()
    return SourceResult(row, tuple(outcomes), tuple(causes), tuple(columns), below)


def _items_below(microbatch: Microbatch, port: int, row: int) -> Column:
    """The Items of a child Domain's Port under a source item, as one list in the order of their Entities."""
    spec = microbatch.index.plan.ports[port]
    entities = microbatch.descendants(microbatch.index.domain_path[spec.domain], [row])
    column = empty_column(spec.depth + 1)
    column.lengths[0].append(len(entities))
    codes = microbatch.ports[port].outcome
    for code, group in groupby(entities, key=codes.__getitem__):
        outcome = OUTCOMES[code]
        assert outcome is not None, f"{spec.name} is not terminal under source item {row}"
        if outcome is ItemOutcome.PRESENT:
            append_values(column, microbatch, port, list(group), 1)
        else:
            for entity in group:
                append_hole(column, 1, Lost(outcome, cause_of(microbatch, port, entity)))
    return column


def _children(microbatch: Microbatch, row: int) -> Iterator[ChildOutcome]:
    """Entities below a source item, Domain by Domain, each in the order of its ordinals."""
    index = microbatch.index
    paths: dict[int, list[tuple[int, tuple[int, ...]]]] = {0: [(row, ())]}
    for domain in index.plan.domains[1:]:
        state = microbatch.domains[domain.id]
        below: list[tuple[int, tuple[int, ...]]] = []
        for parent, path in paths[domain.parent]:
            below += [(child, (*path, ordinal)) for ordinal, child in enumerate(state.children(parent))]
        paths[domain.id] = below
        port = domain.result
        while index.plan.ports[port].kind is PortKind.SETTLE:
            port = index.plan.ports[port].inputs[0]
        result = microbatch.ports[port].outcome
        for child, path in below:
            outcome = OUTCOMES[result[child]]
            assert outcome is not None, f"{domain.name}{path} is not terminal"
            cause = cause_of(microbatch, port, child) if result[child] >= OutcomeCode.FAILED else None
            yield ChildOutcome(domain.name, path, outcome, cause)
