"""What follows an attempt at a microbatch, row by row."""

from __future__ import annotations

import itertools

import pytest

from rayorch_flows.orchestration.ingest.attempt_decision import (
    DECISIONS,
    Action,
    Ended,
    Reason,
    decide,
    how_it_ended,
)
from rayorch_flows.program.outcomes import Cause, CauseKind

EXPECTED = [
    (Ended.FINISHED, False, Action.COMMIT, Reason.ALL_FINISHED),
    (Ended.FINISHED, True, Action.COMMIT, Reason.ALL_FINISHED),
    (Ended.FINISHED_FOR_NOW, False, Action.RETRY, Reason.FAILURES_MAY_PASS),
    (Ended.FINISHED_FOR_NOW, True, Action.COMMIT, Reason.FAILURES_STAY),
    (Ended.ABORTED, False, Action.RETRY, Reason.ABORT_MAY_PASS),
    (Ended.ABORTED, True, Action.COMMIT, Reason.ABORT_STAYS),
    (Ended.NOT_RUNNABLE_NOW, False, Action.RETRY, Reason.CANNOT_RUN_YET),
    (Ended.NOT_RUNNABLE_NOW, True, Action.GIVE_UP, Reason.CANNOT_RUN),
    (Ended.NOT_RUNNABLE, False, Action.GIVE_UP, Reason.CANNOT_RUN),
    (Ended.NOT_RUNNABLE, True, Action.GIVE_UP, Reason.CANNOT_RUN),
    (Ended.RAISED, False, Action.RETRY, Reason.TROUBLE_MAY_PASS),
    (Ended.RAISED, True, Action.GIVE_UP, Reason.TROUBLE_STAYS),
    (Ended.STOP_ASKED, False, Action.CANCEL, Reason.ASKED),
    (Ended.STOP_ASKED, True, Action.CANCEL, Reason.ASKED),
]


@pytest.mark.parametrize(("ended", "last", "action", "reason"), EXPECTED)
def test_what_follows_an_attempt(ended: Ended, last: bool, action: Action, reason: Reason) -> None:
    decision = decide(ended, last=last)
    assert (decision.action, decision.reason) == (action, reason)


def test_the_table_knows_every_ending() -> None:
    assert DECISIONS.keys() == set(itertools.product(Ended, (False, True)))
    assert {decision.reason for decision in DECISIONS.values()} == set(Reason)


def test_the_last_attempt_never_asks_for_another() -> None:
    assert Action.RETRY not in {decide(ended, last=True).action for ended in Ended}


@pytest.mark.parametrize(
    ("aborted", "retryable", "ended"),
    [
        (None, 0, Ended.FINISHED),
        (None, 3, Ended.FINISHED_FOR_NOW),
        (Cause(CauseKind.FUNCTION_ERROR, "no"), 0, Ended.ABORTED),
        (Cause(CauseKind.FUNCTION_ERROR, "no"), 3, Ended.ABORTED),
        (Cause(CauseKind.UNAVAILABLE, "no room", retryable=True), 0, Ended.NOT_RUNNABLE_NOW),
        (Cause(CauseKind.UNAVAILABLE, "no module"), 0, Ended.NOT_RUNNABLE),
    ],
)
def test_how_an_attempt_ended(aborted: Cause | None, retryable: int, ended: Ended) -> None:
    assert how_it_ended(aborted, retryable) is ended
