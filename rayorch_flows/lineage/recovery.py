"""What becomes of Grains whose attempt failed: retry, halve, fail, or abort the microbatch.

The decision is a table in words. An attempt that failed because of the program (an exception) follows the module's
RecoveryPolicy; one that failed because of the infrastructure has its own budget, then is isolated, always. A dispatch
batch that mixes microbatches cannot be blamed on any of them: it is split by microbatch, at no charge.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from rayorch_flows.lineage.protocol import AttemptFailure
from rayorch_flows.program.recovery import RecoveryMode, RecoveryPolicy


class Recovery(StrEnum):
    """What to do with one group of Grains that failed together."""

    RETRY_NOW = "retry now"
    RETRY_AT_TAIL = "retry at the tail"
    HALVE = "halve"
    FAIL_RECORD = "fail the record"
    ABORT = "abort the microbatch"


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """What the decision looks at: the size of the dispatch batch that failed, whether it mixed microbatches, whether it
    had its actor to itself, and how often its Grains failed before, by exception and by infrastructure."""

    failure: AttemptFailure
    batch_size: int
    mixed: bool
    alone: bool
    udf_failures: int
    infra_failures: int


def decide(policy: RecoveryPolicy, attempt: FailedAttempt) -> Recovery:
    """The recovery of one group; RETRY of a mixed batch or of one that never started is free of charge."""
    if attempt.failure is AttemptFailure.NOT_STARTED:
        return Recovery.RETRY_NOW
    if attempt.failure is not AttemptFailure.EXCEPTION:
        if attempt.infra_failures < policy.infra_retries:
            return Recovery.RETRY_NOW
        return _isolate(attempt)
    if attempt.mixed:
        return Recovery.RETRY_NOW
    return _AFTER_EXCEPTION[policy.udf_mode](policy, attempt)


def _isolate(attempt: FailedAttempt) -> Recovery:
    if attempt.batch_size > 1:
        return Recovery.HALVE
    if attempt.failure is AttemptFailure.WORKER_DIED and not attempt.alone:
        return Recovery.RETRY_NOW  # it may have ended well, and its answer died with the batch behind it
    return Recovery.FAIL_RECORD


def _abort(policy: RecoveryPolicy, attempt: FailedAttempt) -> Recovery:
    return Recovery.ABORT


def _retry_batch(policy: RecoveryPolicy, attempt: FailedAttempt) -> Recovery:
    return Recovery.RETRY_NOW if attempt.udf_failures < policy.max_udf_retries else Recovery.ABORT


def _retry_tail(policy: RecoveryPolicy, attempt: FailedAttempt) -> Recovery:
    return Recovery.RETRY_AT_TAIL if attempt.udf_failures < policy.max_udf_retries else Recovery.ABORT


def _isolate_tail(policy: RecoveryPolicy, attempt: FailedAttempt) -> Recovery:
    if attempt.udf_failures < policy.max_udf_retries:
        return Recovery.RETRY_AT_TAIL
    return _isolate(attempt)


_AFTER_EXCEPTION: dict[RecoveryMode, Callable[[RecoveryPolicy, FailedAttempt], Recovery]] = {
    RecoveryMode.ABORT: _abort,
    RecoveryMode.RETRY_BATCH: _retry_batch,
    RecoveryMode.RETRY_TAIL: _retry_tail,
    RecoveryMode.ISOLATE_TAIL: _isolate_tail,
}


def halves(grains: list[int]) -> list[list[int]]:
    """Two halves in order, the first the larger one; a Grain whose companions are gone stays by itself."""
    middle = (len(grains) + 1) // 2
    return [half for half in (grains[:middle], grains[middle:]) if half]
