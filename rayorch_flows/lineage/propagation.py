"""What follows from a published fact: the rules of the primitives, applied to whole batches of Entities.

A publication is (Port, Entities, outcome), with one outcome for all of its Entities. Publications wait in a work list;
handling one looks at every consumer of the Port and may publish more. Handling is idempotent, so order does not
matter. Where several inputs or members fail, the first in argument or ordinal order gives the cause, and a
suppression waits until everything before it in that order is resolved: causes do not depend on the schedule either.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from itertools import groupby

from rayorch_flows.lineage.facts import NO_BLOCK, NOT_EXPANDED, Microbatch
from rayorch_flows.lineage.index import HOLDERS, PlanIndex
from rayorch_flows.lineage.ready import ROOT_PARENT
from rayorch_flows.lineage.retention import Retention
from rayorch_flows.lineage.tables import (
    EXPANSION,
    MASK_RULE,
    MEMBER_RULE,
    OPTIONAL_INPUT,
    REDUCED_EXPANSION,
    REQUIRED_INPUT,
    SEALED_OUTCOME,
    SETTLED,
    VALUE_RULE,
    GrainEvent,
    Phase,
    Verdict,
    merge_publication,
    move,
)
from rayorch_flows.program.outcomes import Cause, CauseKind, OutcomeCode
from rayorch_flows.program.plan import ROOT, PortKind

Entities = list[int] | range

_PRESENT = OutcomeCode.PRESENT
_PRESENT_BYTE = bytes([OutcomeCode.PRESENT])
_SUPPRESSED = OutcomeCode.SUPPRESSED
_PHASE_COUNTERS = {Phase.READY: "ready", Phase.IN_FLIGHT: "in_flight"}


class Propagation:
    """Publishes facts of one machine's microbatches and follows them to the Grains that they make ready or seal."""

    def __init__(self, index: PlanIndex, retention: Retention) -> None:
        self.index = index
        self.plan = index.plan
        self._retention = retention
        self._sequence = 0
        self._work: deque[tuple[int, Entities, int]] = deque()

    def next_sequence(self) -> int:
        """A number larger than any before: the order in which Grains become ready."""
        self._sequence += 1
        return self._sequence

    def publish(self, microbatch: Microbatch, port: int, entities: Entities, code: int) -> None:
        """Set the outcome of one Port at ``entities`` and remember to follow it up."""
        if not entities:
            return
        outcome = microbatch.ports[port].outcome
        if isinstance(entities, range):
            before = outcome[entities.start : entities.stop]
            if before.count(0) != len(before):
                for held in before:
                    merge_publication(held, code)
            outcome[entities.start : entities.stop] = bytes((code,)) * len(entities)
        else:
            for entity in entities:
                if outcome[entity]:
                    merge_publication(outcome[entity], code)
                outcome[entity] = code
        self._work.append((port, entities, code))

    def follow(self, microbatch: Microbatch) -> None:
        """Follow every publication to its end."""
        index, work = self.index, self._work
        while work:
            port, entities, code = work.popleft()
            for call in index.call_consumers[port]:
                self._to_call(microbatch, call, entities, code)
            for target in index.filters[port]:
                self._to_filter(microbatch, target, entities)
            for target in index.settles[port]:
                self.publish(microbatch, target, entities, SETTLED[code])
            for target in index.broadcasts[port]:
                self._to_descendants(microbatch, port, target, entities, code)
            for domain in index.expansions[port]:
                for entity in entities:
                    self._to_expansion(microbatch, domain, entity)
            for target in index.reduces[port]:
                parent = microbatch.domains[self.plan.ports[port].domain].parent
                self._to_reduce(microbatch, target, dict.fromkeys([parent[entity] for entity in entities]))

    def admit_roots(self, microbatch: Microbatch) -> None:
        """Make the root Entities, one a source row; their SOURCE Items are published by the caller."""
        self._grow(microbatch, ROOT, ROOT_PARENT, microbatch.rows)

    def seal(
        self,
        microbatch: Microbatch,
        call: int,
        grains: Entities,
        event: GrainEvent,
        code: int,
        cause: Cause | None = None,
    ) -> None:
        """Seal Grains of one Call with one outcome for all their outputs; ``cause`` is their own or their barrier's."""
        if not grains:
            return
        state = microbatch.calls[call]
        move(state.phase, grains, event)
        count = len(grains)
        state.sealed += count
        if code == OutcomeCode.FAILED:
            state.failed += count
            if cause is not None:
                state.failures[cause.kind] += count
        elif code == _SUPPRESSED:
            state.suppressed += count
        elif code == OutcomeCode.DROPPED:
            state.dropped += count
        self._close(microbatch, self.plan.calls[call].domain, grains, swept=event is not GrainEvent.ACCEPT)
        for port in self.plan.calls[call].outputs:
            if cause is not None:
                microbatch.ports[port].blamed.update(dict.fromkeys(grains, cause))
            self.publish(microbatch, port, grains, code)
        self._retention.let_go(microbatch, self.index.call_releases[call], grains)

    def barrier(self, microbatch: Microbatch, call: int, parent: int, cause: Cause) -> None:
        """Suppress every Grain of (Call, parent) that is not sealed yet, wherever it is (paper, section 4.4)."""
        state = microbatch.calls[call]
        siblings = microbatch.domains[self.plan.calls[call].domain].children(parent)
        state.queue.forget(parent)
        open_grains = [grain for grain in siblings if state.phase[grain] != Phase.SEALED]
        for phase, counter in _PHASE_COUNTERS.items():
            count = sum(state.phase[grain] == phase for grain in open_grains)
            setattr(state, counter, getattr(state, counter) - count)
        self.seal(microbatch, call, open_grains, GrainEvent.BARRIER, _SUPPRESSED, cause)

    def _close(self, microbatch: Microbatch, domain: int, grains: Entities, *, swept: bool) -> None:
        """Count sealed Grains off their source items."""
        for root, group in groupby(map(microbatch.domains[domain].root.__getitem__, grains)):
            microbatch.open[root] -= len(list(group))
            if not microbatch.open[root]:
                microbatch.closing.append(root)
            if swept:
                microbatch.sweep[root] = 1

    def _to_call(self, microbatch: Microbatch, call: int, entities: Entities, code: int) -> None:
        phase = microbatch.calls[call].phase
        inputs = self.plan.calls[call].inputs
        verdicts: dict[int, Entities]
        if self.index.single_input[call]:
            table = OPTIONAL_INPUT if inputs[0].optional else REQUIRED_INPUT
            verdicts = {table[code]: self._in_waiting(phase, entities)}
        else:
            rules = [
                (microbatch.ports[i.port].outcome, OPTIONAL_INPUT if i.optional else REQUIRED_INPUT) for i in inputs
            ]
            sorted_out: dict[int, list[int]] = {}
            for entity in entities:
                if phase[entity] == Phase.WAITING:
                    sorted_out.setdefault(_verdict(rules, entity), []).append(entity)
            verdicts = dict(sorted_out)
        for verdict, grains in verdicts.items():
            if verdict == Verdict.GO:
                self._make_ready(microbatch, call, grains)
            elif verdict != Verdict.WAIT:
                self.seal(microbatch, call, grains, GrainEvent.INPUTS_TERMINAL, SEALED_OUTCOME[Verdict(verdict)])

    @staticmethod
    def _in_waiting(phase: bytearray, entities: Entities) -> Entities:
        if isinstance(entities, range):
            part = phase[entities.start : entities.stop]
            if part.count(Phase.WAITING) == len(part):
                return entities
        return [entity for entity in entities if phase[entity] == Phase.WAITING]

    def _make_ready(self, microbatch: Microbatch, call: int, grains: Entities) -> None:
        if not grains:
            return
        state = microbatch.calls[call]
        move(state.phase, grains, GrainEvent.INPUTS_PRESENT)
        state.ready += len(grains)
        domain = self.plan.calls[call].domain
        if domain == ROOT:
            state.queue.push(ROOT_PARENT, self.next_sequence(), grains)
            return
        parents = microbatch.domains[domain].parent
        if isinstance(grains, range) and parents[grains.start] == parents[grains.stop - 1]:
            state.queue.push(parents[grains.start], self.next_sequence(), grains)
            return
        for parent, siblings in groupby(grains, key=parents.__getitem__):
            state.queue.push(parent, self.next_sequence(), list(siblings))

    def _to_filter(self, microbatch: Microbatch, target: int, entities: Entities) -> None:
        source, mask = self.plan.ports[target].inputs
        outcome = microbatch.ports[target].outcome
        source_outcome = microbatch.ports[source].outcome
        mask_outcome = microbatch.ports[mask].outcome
        found: dict[int, list[int]] = {}
        for entity in entities:
            if outcome[entity]:
                continue
            code: int = source_outcome[entity]
            if code == _PRESENT:
                held = mask_outcome[entity]
                passes = held == _PRESENT and self._mask_value(microbatch, mask, entity)
                code = MASK_RULE[held][passes]
            if code:
                found.setdefault(code, []).append(entity)
        for code, group in found.items():
            self.publish(microbatch, target, group, code)

    def _mask_value(self, microbatch: Microbatch, port: int, entity: int) -> bool:
        """The boolean of a Present mask, looked up at the Port that holds it."""
        spec = self.plan.ports[port]
        while spec.kind not in HOLDERS:
            source = self.plan.ports[spec.inputs[0]]
            if spec.kind is PortKind.BROADCAST:
                entity = microbatch.ancestor(spec.domain, entity, source.domain)
            spec = source
        return bool(microbatch.ports[spec.id].mask[entity])

    def _to_descendants(self, microbatch: Microbatch, source: int, target: int, entities: Entities, code: int) -> None:
        path = self.index.domain_path
        above = len(path[self.plan.ports[source].domain])
        down = path[self.plan.ports[target].domain][above:]
        self.publish(microbatch, target, microbatch.descendants(down, entities), code)

    def _to_expansion(self, microbatch: Microbatch, domain: int, parent: int) -> None:
        state = microbatch.domains[domain]
        if state.expansion[parent]:
            return
        groups = self.plan.domains[domain].groups
        dropped = False
        for group in groups:
            code = EXPANSION[microbatch.ports[group].outcome[parent]]
            if code == OutcomeCode.UNRESOLVED:
                return
            if code == OutcomeCode.FAILED:
                self._resolve(microbatch, domain, parent, code)
                return
            dropped = dropped or code == OutcomeCode.DROPPED
        if dropped:
            self._resolve(microbatch, domain, parent, OutcomeCode.DROPPED)
            return
        lengths = [microbatch.ports[self.plan.ports[group].holder].lengths[parent] for group in groups]
        if len(set(lengths)) > 1:
            names = [self.plan.ports[group].name for group in groups]
            state.blamed[parent] = Cause(
                CauseKind.CONTRACT,
                f"expand_aligned needs lists of one length, but {names} have {lengths}",
                domain=self.plan.domains[self.plan.domains[domain].parent].name,
                ordinals=microbatch.ordinals(self.plan.domains[domain].parent, parent),
            )
            self._resolve(microbatch, domain, parent, OutcomeCode.FAILED)
            return
        self._resolve(microbatch, domain, parent, _PRESENT, lengths[0])

    def _resolve(self, microbatch: Microbatch, domain: int, parent: int, code: int, size: int = 0) -> None:
        """Publish one Expansion: once, with its children if it succeeded."""
        state = microbatch.domains[domain]
        state.expansion[parent] = merge_publication(state.expansion[parent], code)
        first = len(state.parent)
        state.first[parent] = first
        state.size[parent] = size
        spec = self.plan.domains[domain]
        children = range(first, first + size)
        if size:
            self._grow(microbatch, domain, parent, size)
            for group, port in zip(spec.groups, spec.ports, strict=True):
                self._place_elements(microbatch, self.plan.ports[group].holder, port, parent, children)
                self.publish(microbatch, port, children, _PRESENT)
            for port in self.index.domain_broadcasts[domain]:
                source = self.plan.ports[port].inputs[0]
                ancestor = microbatch.ancestor(spec.parent, parent, self.plan.ports[source].domain)
                known = microbatch.ports[source].outcome[ancestor]
                if known:
                    self.publish(microbatch, port, children, known)
        for group in dict.fromkeys(self.plan.ports[group].holder for group in spec.groups):
            for piece in microbatch.ports[group].pieces.get(parent, ()):
                self._retention.drop(piece.block)
        for target in self.index.domain_reduces[domain]:
            self._to_reduce(microbatch, target, (parent,))

    def _grow(self, microbatch: Microbatch, domain: int, parent: int, size: int) -> None:
        """Append ``size`` sibling Entities to a Domain's arrays."""
        state = microbatch.domains[domain]
        first = len(state.parent)
        state.parent.extend(array("i", (parent,)) * size)
        if domain == ROOT:
            state.root.extend(range(size))
        else:
            root = microbatch.domains[self.plan.domains[domain].parent].root[parent]
            state.root.extend(array("i", (root,)) * size)
        for port in self.index.domain_ports[domain]:
            spec = self.plan.ports[port]
            items = microbatch.ports[port]
            items.outcome.extend(bytes(size))
            if spec.kind in HOLDERS:
                items.block.extend(array("q", (NO_BLOCK,)) * size)
                items.row.extend(array("i", (0,)) * size)
                items.left.extend(array("H", (self.index.uses[port],)) * size)
                if spec.as_mask:
                    items.mask.extend(bytes(size))
            elif spec.kind is PortKind.REDUCE:
                microbatch.members_seen[port].extend(array("i", (0,)) * size)
                microbatch.values_seen[port].extend(array("i", (0,)) * size)
        calls = self.index.domain_calls[domain]
        for call in calls:
            microbatch.calls[call].phase.extend(bytes(size))
        for child in self.index.domain_children[domain]:
            below = microbatch.domains[child]
            below.first.extend(array("i", (NOT_EXPANDED,)) * size)
            below.size.extend(array("i", (0,)) * size)
            below.expansion.extend(bytes(size))
        for entity in range(first, first + size) if domain == ROOT else ():
            microbatch.open[entity] += len(calls)
        if domain != ROOT:
            microbatch.open[state.root[first]] += len(calls) * size

    def _place_elements(self, microbatch: Microbatch, group: int, port: int, parent: int, children: range) -> None:
        """Give the children of one Expansion the handles (and mask values) of their list elements."""
        source, items = microbatch.ports[group], microbatch.ports[port]
        if self.plan.ports[port].as_mask:
            items.mask[children.start : children.stop] = source.element_mask[parent]
        if not self.index.uses[port]:
            return
        at = children.start
        for block, first, count in source.pieces.get(parent, ()):
            items.block[at : at + count] = array("q", (block,)) * count
            items.row[at : at + count] = array("i", range(first, first + count))
            self._retention.add(block, count)
            at += count

    def _to_reduce(self, microbatch: Microbatch, target: int, parents: Sequence[int] | dict[int, None]) -> None:
        outcome = microbatch.ports[target].outcome
        found: dict[int, list[int]] = {}
        for parent in parents:
            if not outcome[parent] and (code := self._scan(microbatch, target, parent)):
                found.setdefault(code, []).append(parent)
        for code, group in found.items():
            self.publish(microbatch, target, group, code)

    def _scan(self, microbatch: Microbatch, target: int, parent: int) -> int:
        """The outcome of a reduce at ``parent``, or 0 while it has to wait; goes on where the last scan stopped."""
        value, members = self.plan.ports[target].inputs
        domain = microbatch.domains[self.plan.ports[value].domain]
        code = REDUCED_EXPANSION[domain.expansion[parent]]
        if code != _PRESENT:
            return code
        first, size = domain.first[parent], domain.size[parent]
        outcomes = microbatch.ports[members].outcome
        seen = microbatch.members_seen[target]
        at = seen[parent]
        at = size - len(outcomes[first + at : first + size].lstrip(_PRESENT_BYTE))  # most go on here, at C's speed
        verdict = Verdict.GO
        while at < size and (verdict := MEMBER_RULE[outcomes[first + at]]) == Verdict.GO:
            at += 1
        seen[parent] = at
        if at == size and value != members:
            values = microbatch.ports[value].outcome
            seen = microbatch.values_seen[target]
            at = seen[parent]
            while at < size and (
                outcomes[first + at] != _PRESENT or (verdict := VALUE_RULE[values[first + at]]) == Verdict.GO
            ):
                at += 1
            seen[parent] = at
        if at == size:
            return _PRESENT
        return _SUPPRESSED if verdict == Verdict.SUPPRESS else 0


def _verdict(rules: list[tuple[bytearray, bytes]], entity: int) -> int:
    """What the inputs of a Call say together: the first failing one suppresses once all before it are resolved."""
    dropped = False
    for outcome, table in rules:
        verdict = table[outcome[entity]]
        if verdict == Verdict.WAIT or verdict == Verdict.SUPPRESS:
            return verdict
        dropped = dropped or verdict == Verdict.DROP
    return Verdict.DROP if dropped else Verdict.GO
