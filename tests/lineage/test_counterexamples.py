"""Counterexamples that the properties found, shrunk and written out as plain tests."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rayorch_flows.lineage.protocol import AttemptFailure, BlocksReleased, MicrobatchAborted
from rayorch_flows.program.outcomes import Cause, CauseKind
from rayorch_flows.program.plan import Options
from rayorch_flows.program.recovery import RecoveryPolicy
from tests.lineage.scripted import GROUP, LIST, MASK, Script, call, program, run, step
from tests.lineage.test_scheduling import pages_of, reserved
from tests.properties.driver import Driver
from tests.properties.programs import Expand, Filter, Reader, Reduce, Source
from tests.properties.world import Poison


def test_a_dead_actor_does_not_fail_single_grains_of_several_microbatches() -> None:
    """Each microbatch had one Grain in the batch: that alone is not standing alone."""
    options = Options(batch_size=3, recovery=RecoveryPolicy.isolate_tail(infra_retries=0))
    plan = program(Source(), call(0, 0), outputs=[1], options=options)
    scripts = [Script(plan, name=f"mb{i}") for i in range(3)]
    driver = Driver(plan, Reader(b""), microbatches=[(1, script) for script in scripts])
    for m in driver.microbatches.values():
        driver.admit(m)
    driver.reserve((0, 0))
    assert len(driver.actors[0, 0][0].grains) == 3
    driver.answer((0, 0), AttemptFailure.WORKER_DIED)
    driver.run()
    assert [result.outcomes[0].value for result in driver.results] == ["present"] * 3


def test_a_grain_whose_companion_was_caught_by_a_barrier_has_not_stood_alone() -> None:
    options = Options(
        batch_size=2, slow_start=0, recovery=RecoveryPolicy.isolate_tail(infra_retries=0), max_in_flight=2, replicas=2
    )
    plan = program(Source(), call(0, 0, roles=LIST), Expand((1,)), call(1, 2), Reduce((3,)), outputs=[4])
    plan = replace(plan, modules=(plan.modules[0], replace(plan.modules[1], options=options)))
    script = Script(plan, {(0, (0,)): 3, (0, (1,)): 1, (1, (0, 0)): GROUP})
    driver = Driver(plan, Reader(b""), microbatches=[(2, script)])
    driver.admit(driver.microbatches["mb0"])
    step(driver, ("reserve", 0), ("complete", 0))
    first, second = reserved(driver, 0), reserved(driver, 1)
    assert (first, second) == ([(0, 0), (0, 1)], [(0, 2), (1, 0)])
    driver.answer((1, 0), None)  # the barrier of parent 0 catches (0, 2) in the other batch
    driver.answer((1, 1), AttemptFailure.DEADLINE)
    driver.run()
    assert [r.outcomes[0].value for r in sorted(driver.results, key=lambda r: r.row)] == ["suppressed", "present"]


def test_a_report_for_two_microbatches_whose_first_part_lets_go_of_a_shared_block() -> None:
    """The first microbatch's filter drops its row at once; the block still holds the second one's."""
    options = Options(batch_size=2, max_in_flight=1)
    plan = program(
        Source("list"), Expand((0,)), call(0, 1, roles=("value", "mask")), Filter(2, 3), call(1, 4), Reduce((5,)),
        outputs=[6], options=options,
    )  # fmt: skip
    scripts = [
        Script(plan, {(0, (0, 0)): False}, {(0, 0): 1}, name="mb0"),
        Script(plan, {}, {(0, 0): 1}, name="mb1"),
    ]
    driver = Driver(plan, Reader(b""), microbatches=[(1, script) for script in scripts])
    for m in driver.microbatches.values():
        driver.admit(m)
    driver.reserve((0, 0))
    assert len(driver.actors[0, 0][0].grains) == 2
    driver.run()


def test_grains_that_leave_again_count_against_their_window() -> None:
    """A batch that failed twice left the window wider than it began."""
    driver = pages_of(
        3, 1, batch_size=2, slow_start=1, max_in_flight=3, replicas=2, recovery=RecoveryPolicy.isolate_tail()
    )
    assert reserved(driver) == [(0, 0), (1, 0)]
    driver.answer((1, 0), AttemptFailure.DEADLINE)
    assert reserved(driver) == [(0, 0), (1, 0)]
    driver.answer((1, 0), AttemptFailure.DEADLINE)
    batches = [reserved(driver), reserved(driver), reserved(driver)]
    fresh = [grain for batch in batches for grain in batch if grain in ((0, 1), (0, 2))]
    assert len(fresh) <= 1


def test_a_poisonous_grain_among_microbatches_fails_alone() -> None:
    options = Options(batch_size=3, recovery=RecoveryPolicy.isolate_tail(infra_retries=1))
    plan = program(Source(), call(0, 0), outputs=[1], options=options)
    script = Script(plan, poison={(0, (1,)): Poison("kill", 9)})
    driver = run(script, rows=3)
    assert [r.outcomes[0].value for r in sorted(driver.results, key=lambda r: r.row)] == [
        "present",
        "failed",
        "present",
    ]


def test_a_dropped_members_value_that_comes_after_its_parents_reduce_goes_with_the_source_item() -> None:
    """The reduce does not wait for what lies below dropped members: it is born when its consumer is done."""
    options = Options(batch_size=1, max_in_flight=1, slow_start=0)
    plan = program(
        Source("list"), Expand((0,)), call(0, 1, roles=MASK), Filter(1, 2), call(1, 1, roles=LIST), Expand((4,)),
        Reduce((5,)), Reduce((6,), 3), call(2, 7), outputs=[8], options=options,
    )  # fmt: skip
    script = Script(plan, {(0, (0, 0)): False, (0, (0, 1)): False}, {(0, 0): 2, (0, 1): 1})
    driver = Driver(plan, Reader(b""), microbatches=[(2, script)])
    driver.admit(driver.microbatches["mb0"])
    for event in ("reserve", "complete") * 2:
        step(driver, (event, 0))  # both masks of row 0: its list is empty, its last Call may run
    step(driver, ("reserve", 2), ("complete", 2))
    for event in ("reserve", "complete") * 2:
        step(driver, (event, 1))  # what nobody will look at; now row 0 is done, row 1 is not
    assert [result.row for result in driver.results] == [0]
    driver.run()


@pytest.mark.parametrize("how", ["abort", "cancel"])
def test_nothing_is_told_of_a_microbatch_that_ended_before_anybody_asked(how: str) -> None:
    """One of its source items had just become terminal."""
    plan = program(Source(), call(0, 0), outputs=[1], options=Options(batch_size=1, replicas=2))
    driver = Driver(plan, Reader(b""), microbatches=[(2, Script(plan))])
    driver.admit(driver.microbatches["mb0"])
    driver.reserve((0, 0))
    driver.reserve((0, 1))
    [first], [second] = driver.actors[0, 0], driver.actors[0, 1]
    driver.machine.commit(first.batch.id, driver.report(first, driver.returned(first)))
    assert driver.machine.active("mb0")
    if how == "abort":
        driver.machine.fail(second.batch.id, AttemptFailure.EXCEPTION, Cause(CauseKind.FUNCTION_ERROR, "why"))
    else:
        driver.machine.cancel("mb0")
    told = [i for i in driver.machine.instructions() if not isinstance(i, BlocksReleased)]
    assert [type(i) for i in told] == ([MicrobatchAborted] if how == "abort" else [])
    assert not driver.machine.active("mb0")
