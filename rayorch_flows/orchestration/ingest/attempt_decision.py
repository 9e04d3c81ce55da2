"""What to do after an attempt at a microbatch: a table from how it ended to a decision with its reason.

An attempt is one execution of the microbatch's flow run. Prefect starts the next one, which resumes from what is
staged, when an attempt raises; the last attempt commits whatever there is to commit.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from rayorch_flows.program.outcomes import Cause, CauseKind


class Ended(StrEnum):
    """How an attempt ended."""

    FINISHED = "every source is finished"
    FINISHED_FOR_NOW = "every source is finished, and some failed for a reason that may pass"
    ABORTED = "the engine aborted the microbatch"
    NOT_RUNNABLE_NOW = "nothing of the Pipeline could run, for a reason that may pass"
    NOT_RUNNABLE = "nothing of the Pipeline can run until somebody mends it"
    RAISED = "the attempt itself raised"
    STOP_ASKED = "somebody cancelled the flow run"


class Action(StrEnum):
    COMMIT = "commit"
    RETRY = "ask for a retry"
    GIVE_UP = "give up"
    CANCEL = "cancelled"


class Reason(StrEnum):
    """Why; one name for each row of the table that differs in it."""

    ALL_FINISHED = "nothing is left to do"
    FAILURES_MAY_PASS = "another attempt may mend sources that failed"
    FAILURES_STAY = "no attempt is left for the sources that failed"
    ABORT_MAY_PASS = "another attempt resumes after the abort"
    ABORT_STAYS = "no attempt is left: what the abort left unfinished is committed as failed"
    CANNOT_RUN_YET = "the cluster may have room at the next attempt"
    CANNOT_RUN = "no row can say more than that the Pipeline does not run here"
    TROUBLE_MAY_PASS = "the infrastructure may be back at the next attempt"
    TROUBLE_STAYS = "no attempt is left, and what is staged waits for the next ingest"
    ASKED = "somebody asked for it"


@dataclass(frozen=True, slots=True)
class Decision:
    action: Action
    reason: Reason


_COMMIT, _RETRY, _GIVE_UP, _CANCEL = Action

DECISIONS: Final[dict[tuple[Ended, bool], Decision]] = {
    # (how it ended, whether it was the last attempt)
    (Ended.FINISHED, False): Decision(_COMMIT, Reason.ALL_FINISHED),
    (Ended.FINISHED, True): Decision(_COMMIT, Reason.ALL_FINISHED),
    (Ended.FINISHED_FOR_NOW, False): Decision(_RETRY, Reason.FAILURES_MAY_PASS),
    (Ended.FINISHED_FOR_NOW, True): Decision(_COMMIT, Reason.FAILURES_STAY),
    (Ended.ABORTED, False): Decision(_RETRY, Reason.ABORT_MAY_PASS),
    (Ended.ABORTED, True): Decision(_COMMIT, Reason.ABORT_STAYS),
    (Ended.NOT_RUNNABLE_NOW, False): Decision(_RETRY, Reason.CANNOT_RUN_YET),
    (Ended.NOT_RUNNABLE_NOW, True): Decision(_GIVE_UP, Reason.CANNOT_RUN),
    (Ended.NOT_RUNNABLE, False): Decision(_GIVE_UP, Reason.CANNOT_RUN),
    (Ended.NOT_RUNNABLE, True): Decision(_GIVE_UP, Reason.CANNOT_RUN),
    (Ended.RAISED, False): Decision(_RETRY, Reason.TROUBLE_MAY_PASS),
    (Ended.RAISED, True): Decision(_GIVE_UP, Reason.TROUBLE_STAYS),
    (Ended.STOP_ASKED, False): Decision(_CANCEL, Reason.ASKED),
    (Ended.STOP_ASKED, True): Decision(_CANCEL, Reason.ASKED),
}


def decide(ended: Ended, *, last: bool) -> Decision:
    """What to do after an attempt that ended so."""
    return DECISIONS[ended, last]


def how_it_ended(aborted: Cause | None, retryable: int) -> Ended:
    """``aborted``: the engine's cause if it aborted; ``retryable``: staged sources whose failure may pass."""
    if aborted is not None and aborted.kind is CauseKind.UNAVAILABLE:
        return Ended.NOT_RUNNABLE_NOW if aborted.retryable else Ended.NOT_RUNNABLE
    if aborted is not None:
        return Ended.ABORTED
    return Ended.FINISHED_FOR_NOW if retryable else Ended.FINISHED
