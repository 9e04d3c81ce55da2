"""What an Item can become, why, and the values by which a Function says so."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum, StrEnum
from typing import Any, Final


class ItemOutcome(StrEnum):
    """Terminal outcome of one Port at one Entity. Only PRESENT carries a value."""

    PRESENT = "present"
    DROPPED = "dropped"
    FAILED = "failed"
    SUPPRESSED = "suppressed"


class OutcomeCode(IntEnum):
    """The same outcomes as they lie in dense arrays; 0 is a fact not yet published."""

    UNRESOLVED = 0
    PRESENT = 1
    DROPPED = 2
    FAILED = 3
    SUPPRESSED = 4


OUTCOMES: Final = (
    None,
    ItemOutcome.PRESENT,
    ItemOutcome.DROPPED,
    ItemOutcome.FAILED,
    ItemOutcome.SUPPRESSED,
)


class CauseKind(StrEnum):
    """Why an Item failed, in a closed vocabulary that tables and reports can group by."""

    ENCRYPTED = "encrypted"
    CORRUPT = "corrupt"
    EMPTY = "empty"
    TOO_LARGE = "too_large"
    UNSUPPORTED = "unsupported"
    UNREADABLE = "unreadable"
    TIMEOUT = "timeout"
    WORKER_CRASH = "worker_crash"
    FUNCTION_ERROR = "function_error"
    CONTRACT = "contract"
    CANCELLED = "cancelled"
    UNAVAILABLE = "unavailable"
    """No actor of a Call can be had, or the engine gave up: of a microbatch that was not run, never of an Item."""


RETRYABLE_KINDS: Final = frozenset(
    {CauseKind.UNREADABLE, CauseKind.TIMEOUT, CauseKind.WORKER_CRASH, CauseKind.CANCELLED}
)


@dataclass(frozen=True, slots=True)
class Cause:
    """The root cause of a Failed or Suppressed Item.

    ``call`` names the Call at which it happened, ``ordinals`` the failing Entity as its path of zero-based
    ordinals from the root Entity (empty: the source item itself), ``domain`` that Entity's Domain.
    """

    kind: CauseKind
    message: str
    call: str = ""
    domain: str = ""
    ordinals: tuple[int, ...] = ()
    retryable: bool = False


@dataclass(frozen=True, slots=True)
class RecordFailure:
    """Returned by a Function for one row: this Grain's outputs are Failed, nothing else is touched."""

    cause: Any
    kind: CauseKind = CauseKind.FUNCTION_ERROR
    retryable: bool = False


@dataclass(frozen=True, slots=True)
class GroupFailure:
    """Returned by a Function for one row: RecordFailure, and a barrier for its (Call, immediate parent)."""

    cause: Any
    kind: CauseKind = CauseKind.FUNCTION_ERROR
    retryable: bool = False


@dataclass(frozen=True, slots=True)
class Hole:
    """What a settled Item carries in place of the value that was lost."""

    cause_kind: CauseKind
    cause: str


class _Missing(Enum):
    MISSING = "MISSING"

    def __repr__(self) -> str:
        return "MISSING"

    def __bool__(self) -> bool:
        return False


MISSING: Final = _Missing.MISSING
"""What a Function receives for a dropped value of an ``F.optional`` argument."""
