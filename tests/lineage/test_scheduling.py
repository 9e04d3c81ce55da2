"""What leaves when: batching, slow start, retries, microbatches that share a batch, cancellation, backpressure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rayorch_flows.lineage.protocol import AttemptFailure
from rayorch_flows.program.outcomes import CauseKind
from rayorch_flows.program.plan import Batching, Options
from rayorch_flows.program.recovery import RecoveryPolicy
from tests.lineage.scripted import LIST, Script, call, program, step
from tests.properties.driver import Driver
from tests.properties.programs import Expand, Reader, Reduce, Source
from tests.properties.world import Poison


def pages_of(*lengths: int, **options: Any) -> Driver:
    """Source items with so many pages each, rendered, their pages ready for Call 1 in FIFO order."""
    plan = program(Source(), call(0, 0, roles=LIST), Expand((1,)), call(1, 2), Reduce((3,)), outputs=[4])
    modules = (plan.modules[0], replace(plan.modules[1], options=Options(**options)))  # type: ignore[arg-type]
    plan = replace(plan, modules=modules)
    script = Script(plan, {(0, (row,)): length for row, length in enumerate(lengths)})
    driver = Driver(plan, Reader(b""), microbatches=[(len(lengths), script)])
    driver.admit(driver.microbatches["mb0"])
    while driver.machine.ready(0):
        step(driver, ("reserve", 0), ("complete", 0))
    return driver


def reserved(driver: Driver, actor: int = 0) -> list[tuple[int, ...]]:
    """The Entities of the next dispatch batch of Call 1."""
    actors = driver.actors[1, actor]
    before = len(actors)
    driver.reserve((1, actor))
    return [grain[3] for grain in actors[-1].grains] if len(actors) > before else []


def test_elastic_batches_take_the_front_of_the_queue_across_parents() -> None:
    driver = pages_of(2, 1, 3, batch_size=4, slow_start=0)
    assert reserved(driver) == [(0, 0), (0, 1), (1, 0), (2, 0)]


def test_parent_bound_batches_take_siblings_of_the_first_ready_parent() -> None:
    driver = pages_of(3, 2, batch_size=2, slow_start=0, batching=Batching.PARENT_BOUND, max_in_flight=3)
    assert [reserved(driver), reserved(driver), reserved(driver)] == [[(0, 0), (0, 1)], [(0, 2)], [(1, 0), (1, 1)]]


def test_slow_start_fills_a_batch_from_the_next_parents() -> None:
    driver = pages_of(6, 6, batch_size=4, slow_start=2, max_in_flight=2)
    assert reserved(driver) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert reserved(driver) == [], "both windows are full and the actor is not idle"


def test_slow_start_ignores_its_window_rather_than_let_an_actor_idle() -> None:
    driver = pages_of(6, batch_size=2, slow_start=1, replicas=2)
    assert reserved(driver, 0) == [(0, 0)]
    assert reserved(driver, 1) == [(0, 1), (0, 2)]


def test_an_idle_actor_takes_held_grains_along_up_to_what_a_batch_is_worth() -> None:
    driver = pages_of(6, 6, batch_size=8, slow_start=2)
    driver.machine.learn(1, overhead_rows=1.3)
    assert reserved(driver) == [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (0, 3)]
    assert reserved(driver) == [], "an actor that holds a batch waits for the windows"


def test_a_batch_that_is_worth_it_leaves_held_grains_where_they_are() -> None:
    for overhead_rows in (0.0, 1.0):
        driver = pages_of(6, 6, batch_size=8, slow_start=2)
        driver.machine.learn(1, overhead_rows=overhead_rows)
        assert reserved(driver) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_held_grains_go_along_in_the_part_of_their_microbatch() -> None:
    driver = pages_of(4, 4, batch_size=6, slow_start=1)
    driver.machine.learn(1, overhead_rows=99.0)
    reserved(driver)
    (flying,) = driver.actors[1, 0]
    assert len(flying.batch.segments) == 1
    assert sorted(flying.batch.segments[0].grains) == [0, 1, 2, 3, 4, 5]


def test_short_work_is_shared_by_the_idle_actors_in_batches_that_are_worth_it() -> None:
    sizes: dict[float, list[int]] = {}
    for overhead_rows in (0.0, 1.25, 99.0):
        driver = pages_of(12, batch_size=8, slow_start=0, replicas=4)
        driver.machine.learn(1, overhead_rows=overhead_rows)
        sizes[overhead_rows] = [len(reserved(driver, actor)) for actor in range(4)]
    assert sizes == {0.0: [3, 3, 3, 3], 1.25: [5, 5, 2, 0], 99.0: [8, 4, 0, 0]}


def test_at_the_tail_a_batch_may_be_worth_no_more_than_its_fixed_cost() -> None:
    sizes: list[int] = []
    for draining in (False, True):
        driver = pages_of(40, batch_size=48, slow_start=0, replicas=4)
        driver.machine.learn(1, overhead_rows=8.0)
        driver.machine.draining = draining
        batch = driver.machine.reserve(1, idle=4, workers=4)
        assert batch is not None
        sizes.append(batch.size)
    assert sizes == [32, 10]


def test_sizes_vary_while_the_cost_of_a_batch_is_unknown() -> None:
    driver = pages_of(12, batch_size=8, slow_start=0, replicas=4)
    assert [len(reserved(driver, actor)) for actor in range(4)] == [6, 6, 0, 0]


def test_a_window_grows_by_one_with_every_commit() -> None:
    driver = pages_of(8, 8, 8, batch_size=6, slow_start=2)
    assert reserved(driver) == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    step(driver, ("complete", 1))
    assert reserved(driver) == [(0, 2), (0, 3), (0, 4), (0, 5), (1, 2), (1, 3)]


def test_a_large_parent_and_the_small_ones_behind_it_take_turns() -> None:
    driver = pages_of(40, *[1] * 8, batch_size=2, slow_start=40, max_in_flight=2)
    order: list[int] = []
    while batch := reserved(driver):
        order += [path[0] for path in batch]
        driver.answer((1, 0), None)
    assert order == [0] * 4 + [1, 2, 3, 4] + [0] * 4 + [5, 6, 7, 8] + [0] * 32


def test_parent_bound_batches_take_turns_too() -> None:
    bound = Batching.PARENT_BOUND
    driver = pages_of(9, *[1] * 5, batch_size=2, slow_start=40, max_in_flight=1, batching=bound)
    order: list[tuple[int, int]] = []
    while batch := reserved(driver):
        order.append((batch[0][0], len(batch)))
        driver.answer((1, 0), None)
    assert order == [(0, 2), (1, 1), (2, 1), (0, 2), (3, 1), (4, 1), (0, 2), (5, 1), (0, 2), (0, 1)]


def test_without_slow_start_a_queue_is_first_in_first_out() -> None:
    driver = pages_of(9, 1, batch_size=2, slow_start=0, max_in_flight=1)
    order: list[int] = []
    while batch := reserved(driver):
        order += [path[0] for path in batch]
        driver.answer((1, 0), None)
    assert order == [0] * 9 + [1]


def failing(mode: str, **options: Any) -> Driver:
    policy = getattr(RecoveryPolicy, mode)(**options)
    return pages_of(6, batch_size=2, slow_start=0, recovery=policy, max_in_flight=1)


def test_retry_batch_comes_next_and_alone() -> None:
    driver = failing("retry_batch")
    assert reserved(driver) == [(0, 0), (0, 1)]
    driver.answer((1, 0), AttemptFailure.EXCEPTION)
    assert reserved(driver) == [(0, 0), (0, 1)]


def test_retry_tail_comes_after_the_other_ready_work() -> None:
    driver = failing("retry_tail")
    first = reserved(driver)
    driver.answer((1, 0), AttemptFailure.EXCEPTION)
    order: list[list[tuple[int, ...]]] = []
    while batch := reserved(driver):
        order.append(batch)
        driver.answer((1, 0), None)
    assert order == [[(0, 2), (0, 3)], [(0, 4), (0, 5)], first]


def test_isolate_retries_once_then_halves_until_the_poisonous_grain_stands_alone() -> None:
    plan = program(Source(), call(0, 0), outputs=[1], options=Options(
        batch_size=4, recovery=RecoveryPolicy.isolate_tail()
    ))  # fmt: skip
    script = Script(plan, poison={(0, (2,)): Poison("raise", 9)})
    driver = Driver(plan, Reader(b""), microbatches=[(4, script)])
    driver.admit(driver.microbatches["mb0"])
    sizes: list[list[int]] = []
    while driver.machine.ready(0):
        driver.reserve((0, 0))
        sizes.append([grain[3][0] for grain in driver.actors[0, 0][0].grains])
        driver.complete((0, 0))
    driver.run()
    assert sizes == [[0, 1, 2, 3], [0, 1, 2, 3], [0, 1], [2, 3], [2], [3]]
    assert [result.outcomes[0].value for result in sorted(driver.results, key=lambda r: r.row)] == [
        "present", "present", "failed", "present",
    ]  # fmt: skip


def test_abort_stops_the_microbatch_at_the_first_exception() -> None:
    driver = failing("abort")
    assert reserved(driver)
    driver.answer((1, 0), AttemptFailure.EXCEPTION)
    assert driver.microbatches["mb0"].state == "pending"
    assert driver.machine.idle()


def test_a_grain_that_keeps_killing_its_actor_is_failed_under_every_policy() -> None:
    for mode in ("abort", "retry_batch", "retry_tail", "isolate_tail"):
        driver = failing(mode, infra_retries=1)
        driver.microbatches["mb0"].outcomes.poisoned[1, (0, 3)] = Poison("kill", 9)  # type: ignore[attr-defined]
        driver.run()
        (result,) = driver.results
        assert result.causes[0] is not None
        assert (result.causes[0].kind, result.causes[0].ordinals) == (CauseKind.WORKER_CRASH, (3,))


def test_only_the_running_batch_is_blamed_for_a_dead_actor() -> None:
    driver = pages_of(4, batch_size=2, slow_start=0, recovery=RecoveryPolicy.abort(infra_retries=0), max_in_flight=2)
    assert [reserved(driver), reserved(driver)] == [[(0, 0), (0, 1)], [(0, 2), (0, 3)]]
    driver.answer((1, 0), AttemptFailure.WORKER_DIED)
    batches: list[list[tuple[int, ...]]] = []
    while batch := reserved(driver):
        batches.append(batch)
        driver.answer((1, 0), None)
    assert sorted(batches) == [[(0, 0)], [(0, 1)], [(0, 2), (0, 3)]], "halved, and the innocent batch whole"


def test_an_innocent_grain_whose_answer_died_with_the_batch_behind_it_is_not_failed() -> None:
    """Two single Grains on one actor: the first has ended, the second kills; only the dead actor is seen."""
    policy = RecoveryPolicy.isolate_tail(infra_retries=0)
    driver = pages_of(2, batch_size=1, slow_start=0, recovery=policy, max_in_flight=2)
    assert [reserved(driver), reserved(driver)] == [[(0, 0)], [(0, 1)]]
    driver.answer((1, 0), AttemptFailure.WORKER_DIED)
    driver.run()
    assert driver.results[0].outcomes[0].value == "present"


def test_a_suspect_has_an_actor_to_itself_and_what_is_behind_it_waits() -> None:
    policy = RecoveryPolicy.isolate_tail(infra_retries=1)
    driver = pages_of(6, batch_size=1, slow_start=0, recovery=policy, max_in_flight=2, replicas=2)
    assert [reserved(driver), reserved(driver), reserved(driver, 1)] == [[(0, 0)], [(0, 1)], [(0, 2)]]
    driver.answer((1, 0), AttemptFailure.WORKER_DIED)
    assert reserved(driver, 1) == [], "the actor holds a batch, and the next one has to be alone"
    assert reserved(driver, 0) == [(0, 0)]
    assert driver.actors[1, 0][0].batch.alone
    assert reserved(driver, 1) == [(0, 1)], "taken back from the dead actor, under no suspicion"


def two_microbatches(options: Options) -> Driver:
    plan = program(Source(), call(0, 0), outputs=[1], options=options)
    scripts = [Script(plan, name=name) for name in ("mb0", "mb1")]
    driver = Driver(plan, Reader(b""), microbatches=[(3, script) for script in scripts])
    for m in driver.microbatches.values():
        driver.admit(m)
    driver.reserve((0, 0))
    return driver


def test_a_batch_fills_up_from_the_next_microbatch_the_oldest_first() -> None:
    (flying,) = two_microbatches(Options(batch_size=4)).actors[0, 0]
    assert [(m, path) for m, _, _, path in flying.grains] == [
        ("mb0", (0,)),
        ("mb0", (1,)),
        ("mb0", (2,)),
        ("mb1", (0,)),
    ]


def test_a_batch_that_mixes_microbatches_is_split_before_any_is_aborted() -> None:
    driver = two_microbatches(Options(batch_size=4, recovery=RecoveryPolicy.abort()))
    driver.answer((0, 0), AttemptFailure.EXCEPTION)
    assert [m.state for m in driver.microbatches.values()] == ["running", "running"]
    driver.reserve((0, 0))
    assert {grain[0] for grain in driver.actors[0, 0][0].grains} == {"mb0"}
    driver.answer((0, 0), AttemptFailure.EXCEPTION)
    assert [m.state for m in driver.microbatches.values()] == ["pending", "running"]


def test_cancelling_one_microbatch_leaves_the_other_and_its_rows_of_the_batch() -> None:
    driver = two_microbatches(Options(batch_size=4))
    driver.stopped(driver.microbatches["mb0"], "cancelled")
    driver.machine.cancel("mb0")
    driver.settle_event()
    driver.run()
    assert [(result.row, result.outcomes[0].value) for result in driver.results] == [
        (0, "present"), (1, "present"), (2, "present"),
    ]  # fmt: skip


def test_a_parents_result_leaves_while_others_still_run() -> None:
    driver = pages_of(1, 9, batch_size=1, slow_start=0)
    reserved(driver)
    driver.answer((1, 0), None)
    assert [result.row for result in driver.results] == [0]


def test_a_call_over_its_byte_budget_is_held_back_but_never_for_ever() -> None:
    driver = pages_of(8, batch_size=1, slow_start=0, max_ready_bytes=25, max_in_flight=9)
    assert reserved(driver)
    assert not reserved(driver), "the size of a result is not known before the first one"
    driver.answer((1, 0), None)
    assert reserved(driver)
    assert not reserved(driver), "20 of 25 bytes"
    driver.run()


def test_calls_that_share_a_module_take_turns_by_the_oldest_ready_grain() -> None:
    plan = program(Source(), call(0, 0), call(0, 1), outputs=[2], options=Options(batch_size=1))
    driver = Driver(plan, Reader(b""), microbatches=[(2, Script(plan))])
    driver.admit(driver.microbatches["mb0"])
    order: list[tuple[int, int]] = []
    while driver.machine.ready(0):
        driver.reserve((0, 0))
        (grain,) = driver.actors[0, 0][0].grains
        order.append((grain[2], grain[3][0]))
        driver.complete((0, 0))
    assert order == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_a_batch_that_never_started_keeps_its_whole_budget() -> None:
    policy = RecoveryPolicy.abort(infra_retries=1)
    driver = pages_of(4, batch_size=2, slow_start=0, recovery=policy, max_in_flight=2)
    innocent = [reserved(driver), reserved(driver)][1]
    driver.answer((1, 0), AttemptFailure.WORKER_DIED)
    while driver.actors[1, 0] or reserved(driver):
        if {grain[3] for grain in driver.actors[1, 0][0].grains} == set(innocent):
            break
        driver.answer((1, 0), None)
    driver.answer((1, 0), AttemptFailure.WORKER_DIED)
    assert reserved(driver) == innocent, "retried whole: the first failure was not its own"
