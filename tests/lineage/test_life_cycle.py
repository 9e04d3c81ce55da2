"""The life of a Grain: the table alone allows a change of phase, and everything else changes nothing."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rayorch_flows.errors import ExecutionError
from rayorch_flows.lineage.protocol import AttemptFailure
from rayorch_flows.lineage.tables import (
    GRAIN_TRANSITIONS,
    GrainEvent,
    IllegalTransition,
    Phase,
    merge_publication,
    move,
)
from rayorch_flows.program.outcomes import OutcomeCode
from rayorch_flows.program.plan import Options
from rayorch_flows.program.recovery import RecoveryPolicy
from tests.properties.driver import Driver
from tests.properties.programs import Call, Expand, Filter, Module, Reader, Reduce, Settle, Source, Spec, lower
from tests.properties.world import Outcomes, Rates

CONTRACT = {
    (Phase.WAITING, Phase.READY),
    (Phase.WAITING, Phase.SEALED),
    (Phase.READY, Phase.IN_FLIGHT),
    (Phase.READY, Phase.SEALED),
    (Phase.IN_FLIGHT, Phase.SEALED),
    (Phase.IN_FLIGHT, Phase.READY),
}


@pytest.mark.parametrize("as_range", [False, True])
@pytest.mark.parametrize("event", list(GrainEvent))
@pytest.mark.parametrize("phase", list(Phase))
def test_a_legal_event_moves_a_grain_and_an_illegal_one_raises_and_changes_nothing(
    phase: Phase, event: GrainEvent, as_range: bool
) -> None:
    to = GRAIN_TRANSITIONS.get((phase, event))
    phases = bytearray([Phase.SEALED, phase, phase])
    grains = range(1, 3) if as_range else [1, 2]
    if to is None:
        with pytest.raises(IllegalTransition):
            move(phases, grains, event)
        assert phases == bytes([Phase.SEALED, phase, phase])
    else:
        move(phases, grains, event)
        assert phases == bytes([Phase.SEALED, to, to])


def test_one_illegal_grain_in_a_batch_leaves_the_others_where_they_are() -> None:
    for grains in ([0, 1], range(2)):
        phases = bytearray([Phase.IN_FLIGHT, Phase.SEALED])
        with pytest.raises(IllegalTransition):
            move(phases, grains, GrainEvent.ACCEPT)
        assert phases == bytes([Phase.IN_FLIGHT, Phase.SEALED])


def test_the_table_holds_the_transitions_of_the_contract_and_no_other() -> None:
    assert {(phase, to) for (phase, _), to in GRAIN_TRANSITIONS.items()} == CONTRACT
    assert not any(phase is Phase.SEALED for phase, _ in GRAIN_TRANSITIONS)


@pytest.mark.parametrize("held", list(OutcomeCode))
@pytest.mark.parametrize("published", list(OutcomeCode)[1:])
def test_a_publication_is_irreversible_and_an_identical_repeat_is_accepted(
    held: OutcomeCode, published: OutcomeCode
) -> None:
    if held in (OutcomeCode.UNRESOLVED, published):
        assert merge_publication(held, published) == published
    else:
        with pytest.raises(IllegalTransition):
            merge_publication(held, published)


class LifeCycle(RuleBasedStateMachine):
    """Events in any order, legal and not; after each, every Grain has moved only as the event allows."""

    AFTER_RESERVE = frozenset({(Phase.READY, Phase.IN_FLIGHT)})
    AFTER_ANSWER = frozenset(CONTRACT - {(Phase.READY, Phase.IN_FLIGHT)}) | {(Phase.WAITING, Phase.IN_FLIGHT)}

    @initialize(table=st.binary(min_size=1, max_size=24), rows=st.integers(0, 2), policy=st.integers(0, 3))
    def start(self, table: bytes, rows: int, policy: int) -> None:
        policies = [
            RecoveryPolicy.isolate_tail(),
            RecoveryPolicy.abort(),
            RecoveryPolicy.retry_batch(),
            RecoveryPolicy.retry_tail(infra_retries=0),
        ]
        first = Options(batch_size=3, slow_start=2, recovery=policies[policy], replicas=2)
        second = Options(batch_size=2, recovery=RecoveryPolicy.isolate_tail())
        ops = (
            Source("list"),
            Expand((0,)),
            Call(0, ((1, False),), ("value", "mask")),
            Filter(2, 3),
            Call(1, ((4, True), (2, False)), ("value",)),
            Settle(5),
            Reduce((6,), 1),
        )
        plan = lower(Spec(ops, (Module(2, first), Module(1, second)), (7,)))
        rates = Rates(record=40, group=40, masked=100)
        outcomes = [(n, Outcomes(plan, table, rates, f"mb{i}", i)) for i, n in enumerate((rows, 1))]
        self.driver = Driver(plan, Reader(b""), microbatches=outcomes)
        self.phases: dict[Any, Phase] = {}

    def grains(self) -> Iterator[Any]:
        driver = self.driver
        for m in driver.microbatches.values():
            state = driver.machine._active.get(m.name)
            for call in driver.plan.calls if state else ():
                for entity in range(len(state.calls[call.id].phase)):
                    yield m.name, m.attempt, call.id, driver.machine.ordinals(m.name, call.domain, entity)

    def moved(self, allowed: frozenset[tuple[Phase, Phase]]) -> None:
        now: dict[Any, Phase] = {}
        for name, attempt, call, path in self.grains():
            phase = self.driver.machine.phase(name, call, path[0], path[1:])
            now[name, attempt, call, path] = phase
            before = self.phases.get((name, attempt, call, path), phase)
            assert before is phase or (before, phase) in allowed, f"{name} {call} {path}: {before!r} to {phase!r}"
            assert (phase is Phase.IN_FLIGHT) == ((name, attempt, call, path) in self.driver.in_flight)
            assert (
                phase is not Phase.READY or self.driver.parent((name, attempt, call, path)) not in self.driver.barriers
            )
        self.phases = now

    def unchanged(self) -> bytes:
        return pickle.dumps(self.driver.machine)

    @rule(which=st.integers(0, 1))
    def admit(self, which: int) -> None:
        m = self.driver.microbatches[f"mb{which}"]
        if m.state == "pending":
            self.driver.admit(m)
            self.moved(self.AFTER_ANSWER)
        elif m.name in self.driver.machine._active:
            before = self.unchanged()
            with pytest.raises(ExecutionError):
                self.driver.machine.admit(m.name, m.attempt + 1, 0, [])
            assert self.unchanged() == before

    @rule(which=st.integers(0, 2))
    def reserve(self, which: int) -> None:
        actor = sorted(self.driver.actors)[which]
        self.driver.reserve(actor)
        self.moved(self.AFTER_RESERVE)

    @precondition(lambda self: any(self.driver.actors.values()))
    @rule(which=st.integers(0, 2), failure=st.sampled_from([None, None, None, *list(AttemptFailure)[:3]]))
    def answer(self, which: int, failure: AttemptFailure | None) -> None:
        busy = [actor for actor, flying in self.driver.actors.items() if flying]
        self.driver.answer(busy[which % len(busy)], failure)
        self.moved(self.AFTER_ANSWER)

    @precondition(lambda self: self.driver.past)
    @rule(which=st.integers(0, 100), schedule=st.binary(max_size=4))
    def late(self, which: int, schedule: bytes) -> None:
        """Late, duplicate and stale Reports and failures; the driver compares the whole machine before and after."""
        self.driver.r = Reader(schedule)
        self.driver.late(self.driver.past[which % len(self.driver.past)])
        self.moved(frozenset())

    @rule()
    def answer_an_unknown_batch(self) -> None:
        before = self.unchanged()
        flying = self.driver.past[-1] if self.driver.past else None
        if flying is not None:
            self.driver.machine.commit(10**6, self.driver.report(flying, self.driver.returned(flying)))
            self.driver.settle_event(quiet=True)
        assert self.unchanged() == before

    @precondition(lambda self: any(m.state == "running" for m in self.driver.microbatches.values()))
    @rule(which=st.integers(0, 1), again=st.booleans())
    def cancel(self, which: int, again: bool) -> None:
        running = [m for m in self.driver.microbatches.values() if m.state == "running"]
        m = running[which % len(running)]
        self.driver.stopped(m, "pending" if again else "cancelled")
        self.driver.machine.cancel(m.name)
        self.driver.settle_event()
        self.moved(frozenset())
        assert m.name not in self.driver.machine._active

    @invariant()
    def valid(self) -> None:
        self.driver.machine.validate()

    def teardown(self) -> None:
        if hasattr(self, "driver"):
            self.driver.r = Reader(b"")
            self.driver.run()


LifeCycle.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=(HealthCheck.too_slow, HealthCheck.filter_too_much),
)
TestLifeCycle = LifeCycle.TestCase
