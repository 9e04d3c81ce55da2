"""Every invariant of the machine, checked over its whole state. Slow and thorough: for tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from rayorch_flows.lineage.facts import NO_BLOCK, Microbatch
from rayorch_flows.lineage.index import HOLDERS
from rayorch_flows.lineage.protocol import DispatchBatch
from rayorch_flows.lineage.retention import Retention
from rayorch_flows.lineage.tables import Phase
from rayorch_flows.program.outcomes import OutcomeCode
from rayorch_flows.program.plan import NO_ID

_READY, _IN_FLIGHT, _SEALED = int(Phase.READY), int(Phase.IN_FLIGHT), int(Phase.SEALED)


class InvariantError(AssertionError):
    """The machine's state contradicts itself; the message tells which object, and how."""


def check(active: Mapping[str, Microbatch], batches: Mapping[int, DispatchBatch], retention: Retention) -> None:
    """Raise InvariantError at the first contradiction."""
    references: Counter[int] = Counter()
    for microbatch in active.values():
        _check_lineage(microbatch)
        _check_grains(microbatch, batches)
        _check_outcomes(microbatch)
        _check_open(microbatch)
        references.update(_references(microbatch))
    held = retention.references()
    if dict(references) != held:
        wrong = {b: (held.get(b), references.get(b)) for b in held | references if held.get(b) != references.get(b)}
        raise InvariantError(f"block references (counted, found): {wrong}")
    if any(live < 0 for live in retention.live):
        raise InvariantError(f"negative live bytes: {retention.live}")


def _require(condition: object, story: str) -> None:
    if not condition:
        raise InvariantError(story)


def _check_lineage(microbatch: Microbatch) -> None:
    """Expansions are disjoint contiguous ranges that cover their Domain, and every array has its Domain's length."""
    plan = microbatch.index.plan
    for domain in plan.domains:
        state = microbatch.domains[domain.id]
        entities = len(state.parent)
        where = f"{microbatch.id}/{domain.name}"
        for port in microbatch.index.domain_ports[domain.id]:
            _require(len(microbatch.ports[port].outcome) == entities, f"{where}: {plan.ports[port].name} length")
        for call in microbatch.index.domain_calls[domain.id]:
            _require(len(microbatch.calls[call].phase) == entities, f"{where}: {plan.calls[call].name} length")
        if domain.parent == NO_ID:
            _require(entities == microbatch.rows, f"{where}: {entities} roots for {microbatch.rows} rows")
            continue
        above = microbatch.domains[domain.parent]
        _require(
            len(state.first) == len(state.size) == len(state.expansion) == len(above.parent),
            f"{where}: sizes",
        )
        owners = [NO_ID] * entities
        for parent in range(len(above.parent)):
            for child in state.children(parent):
                if owners[child] != NO_ID:
                    raise InvariantError(f"{where}: Entity {child} in two Expansions")
                owners[child] = parent
                if state.parent[child] != parent or state.root[child] != above.root[parent]:
                    raise InvariantError(f"{where}: Entity {child} does not know its parent or its root")
        _require(NO_ID not in owners, f"{where}: an Entity belongs to no Expansion")


def _check_grains(microbatch: Microbatch, batches: Mapping[int, DispatchBatch]) -> None:
    """Phases agree with the counters, the queues and the dispatch batches that are out."""
    plan = microbatch.index.plan
    flying: dict[int, Counter[int]] = {call.id: Counter() for call in plan.calls}
    for batch in batches.values():
        for segment in batch.segments:
            if segment.microbatch == microbatch.id and segment.attempt == microbatch.attempt:
                generation = microbatch.calls[batch.call].generation
                flying[batch.call].update(
                    grain
                    for grain, sent in zip(segment.grains, segment.generations, strict=True)
                    if generation.get(grain, 0) == sent
                )
    for call in plan.calls:
        state = microbatch.calls[call.id]
        phase = state.phase
        where = f"{microbatch.id}/{call.name}"
        counted = tuple(phase.count(code) for code in (Phase.READY, Phase.IN_FLIGHT, Phase.SEALED))
        if counted != (state.ready, state.in_flight, state.sealed):
            raise InvariantError(f"{where}: counters {state.ready, state.in_flight, state.sealed}, phases {counted}")
        in_flight = Counter(grain for grain, code in enumerate(phase) if code == _IN_FLIGHT)
        if any(flying[call.id][grain] != 1 for grain in in_flight):
            raise InvariantError(f"{where}: in flight {in_flight}, in dispatch batches {flying[call.id]}")
        if state.failures.total() != state.failed:
            raise InvariantError(f"{where}: {state.failed} failed, by cause {state.failures}")
        queued = state.queue.queued()
        waiting_to_leave = Counter(queued)
        for group in (*state.urgent, *state.tail):
            waiting_to_leave.update(grain for grain in group if phase[grain] == _READY)
        ready = Counter(grain for grain, code in enumerate(phase) if code == _READY)
        if waiting_to_leave != ready:
            raise InvariantError(f"{where}: queued {waiting_to_leave}, ready {ready}")
        _require(state.queue.size == len(queued), f"{where}: queue size")
        outcomes = microbatch.ports[call.outputs[0]].outcome if call.outputs else b""
        for grain, outcome in enumerate(outcomes):
            if (phase[grain] == _SEALED) != bool(outcome):
                raise InvariantError(f"{where}: Grain {grain} {Phase(phase[grain]).name}, output {outcome}")
        if any(microbatch.ports[port].outcome != outcomes for port in call.outputs[1:]):
            raise InvariantError(f"{where}: outputs not published together")


def _check_outcomes(microbatch: Microbatch) -> None:
    """Only Items that are not Present have a cause, and a payload only those that are."""
    plan = microbatch.index.plan
    for port in plan.ports:
        items = microbatch.ports[port.id]
        for entity in items.blamed:
            _require(
                items.outcome[entity] in (OutcomeCode.FAILED, OutcomeCode.SUPPRESSED),
                f"{microbatch.id}/{port.name}: {entity} has a cause and outcome {items.outcome[entity]}",
            )
        for entity, block in enumerate(items.block):
            if block != NO_BLOCK and not (items.outcome[entity] == OutcomeCode.PRESENT and items.left[entity]):
                raise InvariantError(f"{microbatch.id}/{port.name}: {entity} holds block {block} without need")


def _check_open(microbatch: Microbatch) -> None:
    """The count of unsealed Grains under each source item is right, and zero where it is terminal."""
    plan = microbatch.index.plan
    found = [0] * microbatch.rows
    for call in plan.calls:
        roots = microbatch.domains[call.domain].root
        for grain, phase in enumerate(microbatch.calls[call.id].phase):
            found[roots[grain]] += phase != _SEALED
    _require(found == microbatch.open, f"{microbatch.id}: open {microbatch.open}, found {found}")
    for row in range(microbatch.rows):
        _require(bool(microbatch.terminal[row]) == (not found[row]), f"{microbatch.id}: row {row} terminal?")


def _references(microbatch: Microbatch) -> Counter[int]:
    """References that the Items and the Expansions to come hold, counted anew."""
    plan = microbatch.index.plan
    counted: Counter[int] = Counter()
    for port in plan.ports:
        if port.kind in HOLDERS:
            counted.update(block for block in microbatch.ports[port.id].block if block != NO_BLOCK)
    for domain in plan.domains[1:]:
        expansion = microbatch.domains[domain.id].expansion
        for group in dict.fromkeys(plan.ports[g].holder for g in domain.groups):
            for parent, pieces in microbatch.ports[group].pieces.items():
                if not expansion[parent]:
                    counted.update(piece.block for piece in pieces)
    return counted
