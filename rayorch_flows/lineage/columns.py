"""Handles of an argument for a list of Entities, resolved through the structure that lies over their holders."""

from __future__ import annotations

from rayorch_flows.lineage.causes import cause_of
from rayorch_flows.lineage.facts import Microbatch
from rayorch_flows.lineage.protocol import HOLE_BLOCK, MISSING_BLOCK, NOT_A_LIST, Column, Lost
from rayorch_flows.program.outcomes import Hole, OutcomeCode
from rayorch_flows.program.plan import PortKind

_FAILING = (OutcomeCode.FAILED, OutcomeCode.SUPPRESSED)


def empty_column(depth: int) -> Column:
    return Column(depth, tuple([] for _ in range(depth)), [], [], [])


def append(column: Column, microbatch: Microbatch, port: int, entities: list[int] | range) -> None:
    """Append the values of ``port`` at ``entities``: Present ones, or Dropped ones (an optional argument: MISSING)."""
    outcome = microbatch.ports[port].outcome
    if len(entities) == 1:
        everyone = outcome[entities[0]] == OutcomeCode.PRESENT
    else:
        everyone = bytes(map(outcome.__getitem__, entities)).count(OutcomeCode.PRESENT) == len(entities)
    if everyone:
        append_values(column, microbatch, port, entities, 0)
        return
    for entity in entities:
        if outcome[entity] == OutcomeCode.PRESENT:
            append_values(column, microbatch, port, (entity,), 0)
        else:
            _leaf(column, 0, MISSING_BLOCK, 0)


def append_values(
    column: Column,
    microbatch: Microbatch,
    port: int,
    entities: list[int] | range | tuple[int, ...],
    level: int,
) -> None:
    spec = microbatch.index.plan.ports[port]
    match spec.kind:
        case PortKind.SOURCE | PortKind.CALL | PortKind.EXPAND:
            items = microbatch.ports[port]
            block, row = items.block, items.row
            if isinstance(entities, range):
                column.blocks.extend(block[entities.start : entities.stop])
                column.rows.extend(row[entities.start : entities.stop])
            else:
                column.blocks.extend([block[entity] for entity in entities])
                column.rows.extend([row[entity] for entity in entities])
        case PortKind.FILTER:
            append_values(column, microbatch, spec.inputs[0], entities, level)
        case PortKind.BROADCAST:
            source = spec.inputs[0]
            above = microbatch.index.plan.ports[source].domain
            ancestors = [microbatch.ancestor(spec.domain, entity, above) for entity in entities]
            append_values(column, microbatch, source, ancestors, level)
        case PortKind.REDUCE:
            value, members = spec.inputs
            domain = microbatch.domains[microbatch.index.plan.ports[value].domain]
            outcomes = microbatch.ports[members].outcome
            survivors: list[int] = []
            for parent in entities:
                children: list[int] | range = domain.children(parent)
                if outcomes.count(OutcomeCode.PRESENT, children.start, children.stop) != len(children):
                    children = [child for child in children if outcomes[child] == OutcomeCode.PRESENT]
                column.lengths[level].append(len(children))
                if len(entities) == 1:
                    append_values(column, microbatch, value, children, level + 1)
                    return
                survivors += children
            append_values(column, microbatch, value, survivors, level + 1)
        case PortKind.SETTLE:
            _append_settled(column, microbatch, spec.inputs[0], entities, level)


def _append_settled(
    column: Column,
    microbatch: Microbatch,
    source: int,
    entities: list[int] | range | tuple[int, ...],
    level: int,
) -> None:
    """Values where the settled Item is Present, holes where it failed, in order."""
    outcome = microbatch.ports[source].outcome
    run: list[int] = []
    for entity in entities:
        if outcome[entity] not in _FAILING:
            run.append(entity)
            continue
        if run:
            append_values(column, microbatch, source, run, level)
            run = []
        cause = cause_of(microbatch, source, entity)
        assert cause is not None
        append_hole(column, level, Hole(cause.kind, cause.message))
    if run:
        append_values(column, microbatch, source, run, level)


def append_hole(column: Column, level: int, hole: Hole | Lost) -> None:
    """One leaf at ``level`` that stands for a value that is not there."""
    column.holes.append(hole)
    _leaf(column, level, HOLE_BLOCK, len(column.holes) - 1)


def _leaf(column: Column, level: int, block: int, row: int) -> None:
    """One leaf at ``level``, in place of a list where the column has lists there."""
    if level < column.depth:
        column.lengths[level].append(NOT_A_LIST)
    column.blocks.append(block)
    column.rows.append(row)
