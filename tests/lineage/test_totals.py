"""Totals of a Call over the life of a machine: what Prometheus counters are made of, so nothing may get lost."""

from __future__ import annotations

from typing import Any

from rayorch_flows.lineage.totals import CallTotals
from rayorch_flows.program.outcomes import CauseKind
from rayorch_flows.program.plan import Options, Plan
from rayorch_flows.program.recovery import RecoveryPolicy
from tests.lineage.scripted import FAIL, GROUP, Script, program
from tests.properties.driver import Driver
from tests.properties.programs import Call, Expand, Reader, Reduce, Source
from tests.properties.world import Poison


def pages(**options: Any) -> Plan:
    """Call 0 makes the pages of a document, Call 1 works on each of them, Call 2 on what comes of them."""
    one_by_one = Options(batch_size=1, slow_start=0, max_in_flight=1, **options)
    return program(
        Source(),
        Call(0, ((0, False),), ("list",)),
        Expand((1,)),
        Call(1, ((2, False),), ("value",)),
        Reduce((3,)),
        Call(2, ((4, False),), ("value",)),
        outputs=[5],
        options=one_by_one,
    )


def drive(plan: Plan, *scripts: Script, rows: int = 1) -> Driver:
    return Driver(plan, Reader(b""), microbatches=[(rows, script) for script in scripts])


def outcomes(totals: CallTotals) -> tuple[int, int, int, int]:
    return totals.present, totals.failed, totals.suppressed, totals.dropped


def test_totals_outlive_the_microbatches() -> None:
    plan = pages()
    first = Script(plan, {(0, (0,)): 3, (1, (0, 1)): FAIL}, name="first")
    second = Script(plan, {(0, (0,)): 3, (1, (0, 0)): GROUP, (0, (1,)): FAIL}, name="second")
    driver = drive(plan, first, second, rows=2)
    driver.run()
    assert driver.machine.idle()
    made, worked, joined = (driver.machine.totals(call) for call in range(3))
    assert outcomes(made) == (3, 1, 0, 0)
    assert made.failures == {CauseKind.CORRUPT: 1}
    assert outcomes(worked) == (2 + 2, 2, 2, 0)
    assert worked.failures == {CauseKind.CORRUPT: 1, CauseKind.ENCRYPTED: 1}
    assert outcomes(joined) == (1, 0, 3, 0)
    assert [totals.ready + totals.in_flight for totals in (made, worked, joined)] == [0, 0, 0]


def test_totals_never_decrease_and_a_cancelled_microbatch_keeps_what_it_did() -> None:
    plan = pages()
    driver = drive(plan, Script(plan, {(0, (0,)): 5}))
    while driver.machine.totals(1).sealed < 3:
        driver.step()
    before = driver.machine.totals(1)
    assert before.ready + before.in_flight == 2
    driver.machine.cancel("mb0")
    after = driver.machine.totals(1)
    assert outcomes(after) == outcomes(before) == (3, 0, 0, 0)
    assert (after.ready, after.in_flight) == (0, 0)


def test_the_retries_of_an_aborted_attempt_stay() -> None:
    plan = pages(recovery=RecoveryPolicy.retry_batch(max_retries=2))
    driver = drive(plan, Script(plan, {(0, (0,)): 1}, poison={(1, (0, 0)): Poison("raise", 1)}))
    driver.run()
    totals = driver.machine.totals(1)
    assert (totals.retries, totals.sealed) == (2, 1)


def test_asking_for_totals_changes_nothing() -> None:
    plan = pages()
    driver = drive(plan, Script(plan, {(1, (0, 0)): FAIL}))
    driver.run()
    once = driver.machine.totals(1)
    once.failures.clear()
    once.sealed = 100
    assert driver.machine.totals(1).failures == {CauseKind.CORRUPT: 1}
    assert driver.machine.totals(1).sealed == 2
