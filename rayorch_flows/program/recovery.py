"""What happens to a dispatch batch whose attempt failed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class RecoveryMode(StrEnum):
    """What an exception out of ``run`` means for the batch."""

    ABORT = "abort"
    RETRY_BATCH = "retry_batch"
    RETRY_TAIL = "retry_tail"
    ISOLATE_TAIL = "isolate_tail"


@dataclass(frozen=True, slots=True)
class RecoveryPolicy:
    """Recovery contract of one module.

    ``max_udf_retries`` counts whole-batch retries after the first execution that raised; ``infra_retries`` is the
    separate budget for dead actors, lost nodes and deadlines, after which the batch is isolated, whatever the mode.
    """

    udf_mode: RecoveryMode = RecoveryMode.ABORT
    max_udf_retries: int = 0
    infra_retries: int = 1

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "udf_mode", RecoveryMode(self.udf_mode))
        except ValueError:
            modes = ", ".join(repr(mode.value) for mode in RecoveryMode)
            raise ValueError(f"udf_mode must be one of {modes}, not {self.udf_mode!r}") from None
        for name in ("max_udf_retries", "infra_retries"):
            value = getattr(self, name)
            if type(value) is not int or value < 0:
                raise ValueError(f"{name} must be a non-negative integer, not {value!r}")

    @classmethod
    def abort(cls, *, infra_retries: int = 1) -> RecoveryPolicy:
        """Abort the microbatch at the first exception."""
        return cls(RecoveryMode.ABORT, 0, infra_retries)

    @classmethod
    def retry_batch(cls, *, max_retries: int = 1, infra_retries: int = 1) -> RecoveryPolicy:
        """Retry the same batch at once, then abort."""
        return cls(RecoveryMode.RETRY_BATCH, max_retries, infra_retries)

    @classmethod
    def retry_tail(cls, *, max_retries: int = 1, infra_retries: int = 1) -> RecoveryPolicy:
        """Retry the same batch once the Call's other ready work is gone, then abort."""
        return cls(RecoveryMode.RETRY_TAIL, max_retries, infra_retries)

    @classmethod
    def isolate_tail(cls, *, infra_retries: int = 1) -> RecoveryPolicy:
        """Retry once at the tail, then halve until the poisonous Grain stands alone and becomes a RecordFailure."""
        return cls(RecoveryMode.ISOLATE_TAIL, 1, infra_retries)
