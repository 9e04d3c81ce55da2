"""Every rule of the contract by example, expectations written out by hand.

``meaning`` runs machine and reference and holds them against each other; what it returns is compared with what a
reader of docs/semantics.md expects. ``.`` stands for a value.
"""

from __future__ import annotations

import pytest

from rayorch_flows.program.outcomes import MISSING, CauseKind, GroupFailure, Hole, ItemOutcome, RecordFailure
from rayorch_flows.program.plan import Options, Plan
from tests.lineage.scripted import FAIL, GROUP, LIST, MASK, Script, call, meaning, program, run, step
from tests.properties.driver import Driver
from tests.properties.programs import Broadcast, Expand, Filter, Op, Reader, Reduce, Settle, Source
from tests.reference import GrainKey

HOLE = Hole(CauseKind.CORRUPT, "broken")


# -- Call ------------------------------------------------------------------------------------------------------------


def test_a_failed_input_suppresses_the_outputs() -> None:
    plan = program(Source(), call(0, 0), call(1, 1), outputs=[1, 2])
    assert meaning(Script(plan, {(0, (0,)): FAIL})) == [("failed", "suppressed")]


def test_a_suppressed_input_suppresses_the_outputs() -> None:
    plan = program(Source(), call(0, 0), call(1, 1), call(2, 2), outputs=[2, 3])
    assert meaning(Script(plan, {(0, (0,)): FAIL})) == [("suppressed", "suppressed")]


def test_a_dropped_required_input_drops_the_outputs() -> None:
    plan = program(Source(), call(0, 0, roles=MASK), Filter(0, 1), call(1, 2), outputs=[3])
    assert meaning(Script(plan, {(0, (0,)): False})) == [("dropped",)]


def test_a_failed_input_wins_over_a_dropped_one() -> None:
    plan = program(Source(), call(0, 0, roles=MASK), Filter(0, 1), call(1, 0), call(2, 2, 3), outputs=[4])
    assert meaning(Script(plan, {(0, (0,)): False, (1, (0,)): FAIL})) == [("suppressed",)]


def test_a_dropped_optional_input_arrives_as_missing() -> None:
    plan = program(Source(), call(0, 0, roles=MASK), Filter(0, 1), call(1, 2, 0, optional=(2,)), outputs=[3])
    driver = run(Script(plan, {(0, (0,)): False}))
    assert driver.microbatches["mb0"].dispatched[-1][1][0] is MISSING


def test_a_failed_optional_input_still_suppresses() -> None:
    plan = program(Source(), call(0, 0), call(1, 1, 0, optional=(1,)), outputs=[2])
    assert meaning(Script(plan, {(0, (0,)): FAIL})) == [("suppressed",)]


def test_the_first_failing_argument_is_the_cause() -> None:
    plan = program(Source(), call(0, 0), call(1, 0), call(2, 1, 2), outputs=[3])
    other = RecordFailure("other", CauseKind.TOO_LARGE)
    for order in (b"", bytes([0] * 6 + [15] * 40)):
        script = Script(plan, {(0, (0,)): FAIL, (1, (0,)): other})
        (result,) = run(script, schedule=order).results
        assert result.causes[0] is not None
        assert (result.causes[0].call, result.causes[0].kind) == ("c0", CauseKind.CORRUPT)


def test_every_output_of_a_grain_fails_together() -> None:
    plan = program(Source(), call(0, 0, roles=("value", "list", "mask")), outputs=[1, 2, 3])
    assert meaning(Script(plan, {(0, (1,)): FAIL}), rows=2) == [(".", ".", "."), ("failed",) * 3]


def test_a_failed_source_value_fails_its_item_only() -> None:
    plan = program(Source("list"), Expand((0,)), call(0, 1), Reduce((2,)), outputs=[3])
    assert meaning(Script(plan, sources={(0, 0): FAIL}), rows=2) == [("suppressed",), ([".", "."],)]


# -- filter ----------------------------------------------------------------------------------------------------------


def pages(*more: Op, outputs: list[int]) -> Plan:
    """p0 source, p1 list of pages, p2 page, p3 mask of a page."""
    return program(
        Source(),
        call(0, 0, roles=LIST),
        Expand((1,)),
        call(1, 2, roles=MASK),
        *more,
        outputs=outputs,  # type: ignore[arg-type]
    )


def test_filter_passes_on_true_and_drops_on_false() -> None:
    plan = pages(Filter(2, 3), Reduce((4,)), outputs=[5])
    script = Script(plan, {(0, (0,)): 3, (1, (0, 1)): False})
    assert meaning(script) == [([".", "."],)]


def test_filter_gives_the_sources_outcome_before_it_looks_at_the_mask() -> None:
    plan = program(Source(), call(0, 0), call(1, 0, roles=MASK), Filter(1, 2), outputs=[3])
    assert meaning(Script(plan, {(0, (0,)): FAIL, (1, (0,)): False})) == [("failed",)]


def test_a_filter_of_a_dropped_source_stays_dropped_though_the_mask_failed() -> None:
    plan = program(Source(), call(0, 0, roles=MASK), Filter(0, 1), call(1, 0, roles=MASK), Filter(2, 3), outputs=[4])
    assert meaning(Script(plan, {(0, (0,)): False, (1, (0,)): FAIL})) == [("dropped",)]


def test_filter_gives_the_masks_outcome_if_the_mask_is_not_present() -> None:
    plan = program(Source(), call(0, 0, roles=MASK), Filter(0, 1), outputs=[2])
    assert meaning(Script(plan, {(0, (0,)): FAIL})) == [("failed",)]
    plan = program(Source(), call(0, 0, roles=MASK), call(1, 0, roles=MASK), Filter(2, 1), Filter(0, 3), outputs=[4])
    assert meaning(Script(plan, {(0, (0,)): False})) == [("dropped",)]


def test_an_element_of_a_list_can_be_the_mask() -> None:
    plan = program(
        Source(), call(0, 0, roles=("list", "flags")), Expand((1, 2)), Filter(3, 4), Reduce((5,)), outputs=[6]
    )
    (value,) = meaning(Script(plan, {(0, (0,)): 6}))
    assert isinstance(value[0], list)


# -- broadcast -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("outcome", "expected"), [(FAIL, "suppressed"), (None, [".", "."])])
def test_broadcast_is_the_ancestors_outcome(outcome: object, expected: object) -> None:
    plan = program(
        Source(), call(0, 0, roles=LIST), Expand((1,)), call(1, 0), Broadcast(3, 2), Reduce((4,)), outputs=[5]
    )
    assert meaning(Script(plan, {(1, (0,)): outcome})) == [(expected,)]


def test_broadcast_crosses_several_domains() -> None:
    plan = program(
        Source(), call(0, 0, roles=LIST), Expand((1,)), call(1, 2, roles=LIST), Expand((3,)),
        Broadcast(0, 4), call(2, 5, 4), Reduce((6,)), Reduce((7,)), outputs=[8],
    )  # fmt: skip
    assert meaning(Script(plan, {(1, (0, 0)): 3, (1, (0, 1)): 0})) == [([[".", ".", "."], []],)]


# -- expand and reduce -----------------------------------------------------------------------------------------------


def paged(outcome: object = None, **script: object) -> Script:
    plan = program(Source(), call(0, 0, roles=LIST), Expand((1,)), call(1, 2), Reduce((3,)), outputs=[4])
    return Script(plan, {(0, (0,)): outcome} | script.get("grains", {}))  # type: ignore[operator]


def test_reduce_gathers_in_the_order_of_the_ordinals_whatever_completes_first() -> None:
    for schedule in (b"", bytes(range(256)), bytes(reversed(range(256)))):
        (result,) = run(paged(5), schedule=schedule).results
        assert [child.ordinals for child in result.children] == [(0,), (1,), (2,), (3,), (4,)]


def test_an_empty_expansion_is_a_success_and_reduces_to_an_empty_list() -> None:
    assert meaning(paged(0)) == [([],)]


def test_a_dropped_group_drops_its_expansion_and_the_reduce() -> None:
    plan = program(
        Source(), call(0, 0, roles=MASK), Filter(0, 1), call(1, 2, roles=LIST), Expand((3,)), Reduce((4,)), outputs=[5]
    )
    assert meaning(Script(plan, {(0, (0,)): False})) == [("dropped",)]


@pytest.mark.parametrize("failing", [{(0, (0,)): FAIL}, {(1, (0,)): FAIL}])
def test_a_failed_or_suppressed_group_suppresses_the_reduce(failing: dict[GrainKey, object]) -> None:
    plan = program(Source(), call(0, 0), call(1, 1, roles=LIST), Expand((2,)), Reduce((3,)), outputs=[4])
    assert meaning(Script(plan, failing)) == [("suppressed",)]


def test_a_failed_member_suppresses_its_parent_only() -> None:
    script = paged(2, grains={(1, (0, 1)): FAIL})
    assert meaning(script, rows=2) == [("suppressed",), ([".", "."],)]


def test_the_cause_is_that_of_the_lowest_failing_ordinal() -> None:
    late = RecordFailure("late", CauseKind.TIMEOUT)
    for schedule in (b"", bytes([15, 7, 1, 30] * 30)):
        (result,) = run(paged(5, grains={(1, (0, 3)): late, (1, (0, 2)): FAIL}), schedule=schedule).results
        assert result.causes[0] is not None
        assert (result.causes[0].ordinals, result.causes[0].kind) == ((2,), CauseKind.CORRUPT)


def test_dropped_members_are_left_out_and_no_survivor_gives_an_empty_list() -> None:
    plan = pages(Filter(2, 3), call(2, 4), Reduce((5,)), outputs=[6])
    assert meaning(Script(plan, {(1, (0, 0)): False})) == [(["."],)]
    assert meaning(Script(plan, {(1, (0, 0)): False, (1, (0, 1)): False})) == [([],)]


def test_a_dropped_members_value_is_never_looked_at() -> None:
    plan = pages(Filter(2, 3), call(2, 2), Reduce((5,), members=4), outputs=[6])
    script = Script(plan, {(0, (0,)): 3, (1, (0, 1)): False, (2, (0, 1)): FAIL})
    assert meaning(script) == [([".", "."],)]


def test_a_surviving_member_without_a_value_suppresses_the_parent() -> None:
    plan = pages(Filter(2, 3), Reduce((4,), members=2), outputs=[5])
    (result,) = run(Script(plan, {(1, (0, 1)): False})).results
    assert result.outcomes == (ItemOutcome.SUPPRESSED,)
    assert result.causes[0] is not None
    assert (result.causes[0].kind, result.causes[0].ordinals) == (CauseKind.CONTRACT, (1,))


def test_aligned_expand_and_reduce_share_one_membership() -> None:
    plan = program(
        Source(), call(0, 0, roles=("list", "list")), Expand((1, 2)), call(1, 3, roles=MASK), Filter(4, 5),
        Reduce((3, 4), members=6), outputs=[7, 8],
    )  # fmt: skip
    assert meaning(Script(plan, {(0, (0,)): 3, (1, (0, 1)): False})) == [([".", "."], [".", "."])]


def test_nested_and_sibling_domains_meet_at_their_parent() -> None:
    plan = program(
        Source(), call(0, 0, roles=LIST), call(1, 0, roles=LIST), Expand((1,)), Expand((2,)), call(2, 3), call(3, 4),
        Reduce((5,)), Reduce((6,)), call(4, 7, 8), outputs=[7, 8, 9],
    )  # fmt: skip
    assert meaning(Script(plan, {(0, (0,)): 3, (1, (0,)): 1})) == [([".", ".", "."], ["."], ".")]


def test_no_source_items_at_all() -> None:
    driver = run(paged(), rows=0)
    assert driver.results == []
    assert driver.microbatches["mb0"].state == "done"


# -- settle ----------------------------------------------------------------------------------------------------------


def test_settle_turns_failed_and_suppressed_into_a_hole() -> None:
    plan = program(
        Source(), call(0, 0, roles=LIST), Expand((1,)), call(1, 2), call(2, 3), Settle(4), Reduce((5,)), outputs=[6]
    )
    assert meaning(Script(plan, {(1, (0, 1)): FAIL, (0, (0,)): 3})) == [([".", HOLE, "."],)]


def test_settle_leaves_dropped_dropped() -> None:
    plan = pages(Filter(2, 3), Settle(4), Reduce((5,)), outputs=[6])
    assert meaning(Script(plan, {(1, (0, 0)): False})) == [(["."],)]


def test_a_settled_list_is_one_hole() -> None:
    plan = program(Source(), call(0, 0, roles=LIST), Expand((1,)), call(1, 2), Reduce((3,)), Settle(4), outputs=[5])
    assert meaning(Script(plan, {(1, (0, 1)): FAIL}), rows=2) == [(HOLE,), ([".", "."],)]


def test_a_settled_child_is_reported_with_what_lies_under_the_settle() -> None:
    plan = program(Source(), call(0, 0, roles=LIST), Expand((1,)), call(1, 2), Settle(3), Reduce((4,)), outputs=[5])
    (result,) = run(Script(plan, {(1, (0, 1)): FAIL})).results
    assert result.outcomes == (ItemOutcome.PRESENT,)
    assert [child.outcome for child in result.children] == [ItemOutcome.PRESENT, ItemOutcome.FAILED]
    assert result.children[1].cause is not None
    assert result.children[1].cause.message == "broken"


# -- failures --------------------------------------------------------------------------------------------------------


def test_a_record_failure_touches_no_sibling() -> None:
    plan = program(Source(), call(0, 0, roles=LIST), Expand((1,)), call(1, 2), Settle(3), Reduce((4,)), outputs=[5])
    assert meaning(Script(plan, {(0, (0,)): 4, (1, (0, 0)): FAIL})) == [([HOLE, ".", ".", "."],)]


GROUP_HOLE = Hole(CauseKind.ENCRYPTED, "broken group")


@pytest.mark.parametrize("batch_size", [1, 2, 4])
def test_a_group_failure_suppresses_the_siblings_that_have_not_committed(batch_size: int) -> None:
    """In batches of two, pages 0 and 1 are committed before page 2 fails its group; page 3 shares its batch."""
    plan = program(
        Source(), call(0, 0, roles=LIST), Expand((1,)), call(1, 2), Settle(3), Reduce((4,)), outputs=[5],
        options=Options(batch_size=batch_size, max_in_flight=1),
    )  # fmt: skip
    committed = 2 // batch_size * batch_size
    expected = ["."] * committed + [GROUP_HOLE] * (6 - committed)
    assert meaning(Script(plan, {(0, (0,)): 6, (1, (0, 2)): GROUP})) == [(expected,)]


def test_a_sibling_in_an_earlier_row_of_the_same_batch_is_rejected_too() -> None:
    plan = program(
        Source(), call(0, 0, roles=LIST), Expand((1,)), call(1, 2), Settle(3), Reduce((4,)), outputs=[5],
        options=Options(batch_size=8),
    )  # fmt: skip
    assert meaning(Script(plan, {(0, (0,)): 3, (1, (0, 2)): GROUP})) == [([GROUP_HOLE] * 3,)]


def test_a_barrier_leaves_other_parents_and_other_calls_alone() -> None:
    plan = program(
        Source(), call(0, 0, roles=LIST), Expand((1,)), call(1, 2), call(2, 2), Settle(3), Reduce((5,)), Reduce((4,)),
        outputs=[6, 7], options=Options(batch_size=8),
    )  # fmt: skip
    script = Script(plan, {(1, (0, 0)): GROUP})
    assert meaning(script, rows=2) == [([GROUP_HOLE, GROUP_HOLE], [".", "."]), ([".", "."], [".", "."])]


def test_a_group_failure_of_a_root_entity_is_a_record_failure() -> None:
    plan = program(Source(), call(0, 0), outputs=[1], options=Options(batch_size=8))
    assert meaning(Script(plan, {(0, (1,)): GROUP}), rows=3) == [(".",), ("failed",), (".",)]


def test_a_cause_says_where_it_happened() -> None:
    plan = program(
        Source(), call(0, 0, roles=LIST), Expand((1,)), call(1, 2, roles=LIST), Expand((3,)), call(2, 4),
        Reduce((5,)), Reduce((6,)), outputs=[7],
    )  # fmt: skip
    failure = RecordFailure("no table", CauseKind.EMPTY, retryable=True)
    (result,) = run(Script(plan, {(2, (0, 1, 0)): failure})).results
    cause = result.causes[0]
    assert cause is not None
    assert (cause.kind, cause.message, cause.call, cause.domain, cause.ordinals, cause.retryable) == (
        CauseKind.EMPTY, "no table", "c2", "d2", (1, 0), True,
    )  # fmt: skip


def test_a_failing_group_failure_among_committed_siblings_keeps_them() -> None:
    plan = program(
        Source(), call(0, 0, roles=LIST), Expand((1,)), call(1, 2), Settle(3), Reduce((4,)), outputs=[5],
        options=Options(batch_size=1, max_in_flight=1),
    )  # fmt: skip
    failure = GroupFailure("late", CauseKind.TIMEOUT)
    assert meaning(Script(plan, {(0, (0,)): 3, (1, (0, 2)): failure})) == [
        ([".", ".", Hole(CauseKind.TIMEOUT, "late")],)
    ]


# -- causes do not depend on the schedule ----------------------------------------------------------------------------


OTHER = RecordFailure("other", CauseKind.TOO_LARGE)


def holes(driver: Driver, call: int) -> list[object]:
    """The first arguments with which a Call was dispatched."""
    return [args[0] for (of, _), args in driver.microbatches["mb0"].dispatched if of == call]


@pytest.mark.parametrize("first", [0, 1])
def test_a_call_with_a_failing_argument_waits_for_the_arguments_before_it(first: int) -> None:
    """The hole names the first argument's failure, whichever of the two arrives first."""
    plan = program(Source(), call(0, 0), call(1, 0), call(2, 1, 2), Settle(3), call(3, 4), outputs=[5])
    script = Script(plan, {(0, (0,)): FAIL, (1, (0,)): OTHER})
    driver = Driver(plan, Reader(b""), microbatches=[(1, script)])
    driver.admit(driver.microbatches["mb0"])
    step(driver, ("reserve", 0), ("reserve", 1), ("complete", first), ("reserve", 3))
    driver.run()
    assert holes(driver, 3) == [HOLE]


@pytest.mark.parametrize("first", [0, 1])
def test_a_reduce_with_a_failing_member_waits_for_the_members_before_it(first: int) -> None:
    plan = program(
        Source(), call(0, 0, roles=LIST), Expand((1,)), call(1, 2), Reduce((3,)), Settle(4), call(2, 5), outputs=[6],
        options=Options(batch_size=1, replicas=2, max_in_flight=2),
    )  # fmt: skip
    script = Script(plan, {(1, (0, 0)): FAIL, (1, (0, 1)): OTHER})
    driver = Driver(plan, Reader(b""), microbatches=[(1, script)])
    driver.admit(driver.microbatches["mb0"])
    step(driver, ("reserve", 0), ("complete", 0))
    driver.reserve((1, 0))
    driver.reserve((1, 1))
    driver.complete((1, first))
    driver.reserve((2, 0))
    driver.run()
    assert holes(driver, 2) == [HOLE]


# -- payloads --------------------------------------------------------------------------------------------------------


def test_payloads_that_nobody_will_read_go_with_their_source_item() -> None:
    """The last Call is suppressed before the pages exist, so no consumer ever lets go of what they hold."""
    plan = program(
        Source(), call(0, 0), call(1, 0, roles=LIST), Expand((2,)), call(2, 3), Reduce((4,)), call(3, 1, 5),
        outputs=[6], options=Options(batch_size=1, max_in_flight=1),
    )  # fmt: skip
    assert meaning(Script(plan, {(0, (0,)): FAIL}), rows=2) == [("suppressed",), (".",)]
