"""Atomic, generation-fenced commit of a dispatch batch's Reports (paper, section 4.4, equation 3)."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from itertools import groupby

from rayorch_flows.lineage.facts import Microbatch, Piece
from rayorch_flows.lineage.propagation import Entities, Propagation
from rayorch_flows.lineage.protocol import Block, OutputReport, RowFailure, Segment
from rayorch_flows.lineage.retention import Retention
from rayorch_flows.lineage.tables import GrainEvent, Phase
from rayorch_flows.program.outcomes import Cause, OutcomeCode
from rayorch_flows.program.plan import ROOT


def accepted_rows(microbatch: Microbatch, call: int, segment: Segment) -> list[int] | range:
    """Positions in ``segment`` whose Grain is in flight at the generation that was dispatched."""
    state = microbatch.calls[call]
    phase, generation = state.phase, state.generation
    grains = segment.grains
    if not generation and bytes(map(phase.__getitem__, grains)).count(Phase.IN_FLIGHT) == len(grains):
        return range(len(grains))  # nothing was ever retried, so every generation is 0
    return [
        position
        for position, (grain, sent) in enumerate(zip(grains, segment.generations, strict=True))
        if phase[grain] == Phase.IN_FLIGHT and generation.get(grain, 0) == sent
    ]


def commit_segment(
    propagation: Propagation,
    retention: Retention,
    microbatch: Microbatch,
    call: int,
    segment: Segment,
    failures: dict[int, RowFailure],
    placed: PlacedOutputs,
    first_row: int,
) -> None:
    """Commit one microbatch's part of a dispatch batch; its rows start at ``first_row``.

    Group failures come first, in row order: each seals its Grain and raises a barrier that rejects its siblings,
    those of the same dispatch batch included.
    """
    state = microbatch.calls[call]
    grains = segment.grains
    accepted = accepted_rows(microbatch, call, segment)
    if failures:
        failing = [(p, failures[first_row + p]) for p in accepted if first_row + p in failures]
        for position, failure in sorted(failing, key=lambda item: not item[1].group):
            if state.phase[grains[position]] == Phase.IN_FLIGHT:
                _fail(propagation, microbatch, call, grains[position], failure)
        accepted = [p for p in accepted if first_row + p not in failures and state.phase[grains[p]] == Phase.IN_FLIGHT]
    everyone = len(accepted) == len(grains)
    count_back(microbatch, call, grains, None if everyone else set(accepted))
    if not accepted:
        return
    present = as_range(grains if everyone else [grains[position] for position in accepted])
    ranks = placed.ranks(first_row, accepted)
    ports = propagation.plan.calls[call].outputs
    for port, output in zip(ports, placed.outputs, strict=True):
        place_items(retention, microbatch, port, present, ranks, output, propagation.index.group_uses[port])
    state.in_flight -= len(present)
    propagation.seal(microbatch, call, present, GrainEvent.ACCEPT, OutcomeCode.PRESENT)


def blame(microbatch: Microbatch, call: int, grain: int, cause: Cause) -> Cause:
    """The cause with the Call, Domain and ordinals at which it happened."""
    plan = microbatch.index.plan
    spec = plan.calls[call]
    return replace(
        cause,
        call=spec.name,
        domain=plan.domains[spec.domain].name,
        ordinals=microbatch.ordinals(spec.domain, grain),
    )


def _fail(propagation: Propagation, microbatch: Microbatch, call: int, grain: int, failure: RowFailure) -> None:
    cause = blame(microbatch, call, grain, failure.cause)
    microbatch.calls[call].in_flight -= 1
    propagation.seal(microbatch, call, [grain], GrainEvent.ACCEPT, OutcomeCode.FAILED, cause)
    domain = propagation.plan.calls[call].domain
    if failure.group and domain != ROOT:
        propagation.barrier(microbatch, call, microbatch.domains[domain].parent[grain], cause)


def count_back(microbatch: Microbatch, call: int, grains: list[int], committed: Container[int] | None) -> None:
    """Tell the slow-start windows which siblings came back, and how many of them with a value: those at the positions
    ``committed`` (None: all)."""
    domain = microbatch.index.plan.calls[call].domain
    if domain == ROOT:
        return
    queue = microbatch.calls[call].queue
    position = 0
    for parent, group in groupby(map(microbatch.domains[domain].parent.__getitem__, grains)):
        count = len(list(group))
        end = position + count
        with_value = count if committed is None else sum(p in committed for p in range(position, end))
        queue.returned(parent, count, with_value)
        position = end


class PlacedOutputs:
    """The outputs of one report, laid out by rank: the position of a row among the Present rows."""

    __slots__ = ("_rank", "outputs")

    def __init__(self, outputs: tuple[OutputReport, ...], failures: dict[int, RowFailure], size: int) -> None:
        self._rank: dict[int, int] | None = None
        if failures:
            self._rank = {row: rank for rank, row in enumerate(r for r in range(size) if r not in failures)}
        self.outputs = tuple(_PlacedOutput(output) for output in outputs)

    def ranks(self, first_row: int, positions: Entities) -> Entities:
        if self._rank is None:
            if isinstance(positions, range):
                return range(first_row + positions.start, first_row + positions.stop)
            return [first_row + position for position in positions]
        return [self._rank[first_row + position] for position in positions]


class _PlacedOutput:
    __slots__ = (
        "element_mask",
        "element_starts",
        "elements",
        "lengths",
        "mask",
        "value_blocks",
        "value_rows",
    )

    def __init__(self, output: OutputReport) -> None:
        self.value_blocks, self.value_rows = _lay_out(output.values)
        self.elements = output.elements
        self.lengths = output.lengths
        self.element_starts: list[int] = []
        start = 0
        for length in output.lengths or ():
            self.element_starts.append(start)
            start += length
        self.mask = output.mask
        self.element_mask = output.element_mask


def _lay_out(blocks: tuple[Block, ...]) -> tuple[list[int], list[int]]:
    ids: list[int] = []
    rows: list[int] = []
    for block in blocks:
        ids.extend([block.id] * block.rows)
        rows.extend(range(block.rows))
    return ids, rows


def place_items(
    retention: Retention,
    microbatch: Microbatch,
    port: int,
    entities: Entities,
    ranks: Entities,
    output: _PlacedOutput,
    group_uses: int,
) -> None:
    """Give the Items of a SOURCE or CALL Port at ``entities`` their handles, list lengths and mask values."""
    items = microbatch.ports[port]
    if output.value_blocks:
        block, row, left = items.block, items.row, items.left
        value_blocks, value_rows = output.value_blocks, output.value_rows
        gained: dict[int, int] = {}
        for entity, rank in zip(entities, ranks, strict=True):
            if left[entity]:
                held = value_blocks[rank]
                block[entity] = held
                row[entity] = value_rows[rank]
                gained[held] = gained.get(held, 0) + 1
        for held, count in gained.items():
            retention.add(held, count)
    if output.mask is not None and microbatch.index.plan.ports[port].as_mask:
        for entity, rank in zip(entities, ranks, strict=True):
            items.mask[entity] = output.mask[rank]
    if output.lengths is not None:
        for entity, rank in zip(entities, ranks, strict=True):
            length, start = output.lengths[rank], output.element_starts[rank]
            items.lengths[entity] = length
            if output.element_mask is not None:
                items.element_mask[entity] = output.element_mask[start : start + length]
            pieces = _pieces(output.elements, start, length)
            items.pieces[entity] = pieces
            for piece in pieces:
                retention.add(piece.block, group_uses)


def _pieces(blocks: tuple[Block, ...], start: int, length: int) -> list[Piece]:
    """Where ``length`` flattened elements from ``start`` on lie."""
    pieces: list[Piece] = []
    for block in blocks:
        if length == 0:
            break
        if start < block.rows:
            count = min(length, block.rows - start)
            pieces.append(Piece(block.id, start, count))
            start, length = start + count, length - count
        start -= block.rows
    return pieces


def as_range(entities: list[int]) -> Entities:
    """The same Entities as a range where they are consecutive, for the bulk paths."""
    span = range(entities[0], entities[-1] + 1)
    if len(span) == len(entities) and entities == list(span):
        return span
    return entities
