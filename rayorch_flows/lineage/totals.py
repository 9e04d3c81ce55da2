"""What one Call has come to over the life of a machine, microbatches that are over included."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from rayorch_flows.lineage.facts import CallState
from rayorch_flows.program.outcomes import CauseKind


@dataclass(slots=True)
class CallTotals:
    """Grains by phase now, and by outcome since the machine was made; these never decrease.

    ``failures`` are the Grains that failed themselves, by the kind of their cause; those that were suppressed because
    of them are not in it.
    """

    ready: int = 0
    in_flight: int = 0
    sealed: int = 0
    failed: int = 0
    suppressed: int = 0
    dropped: int = 0
    retries: int = 0
    failures: Counter[CauseKind] = field(default_factory=Counter[CauseKind])

    @property
    def present(self) -> int:
        return self.sealed - self.failed - self.suppressed - self.dropped

    def add(self, state: CallState, *, over: bool) -> None:
        """Count one microbatch in; of one that is over, nothing is ready or in flight any more."""
        if not over:
            self.ready += state.ready
            self.in_flight += state.in_flight
        self.sealed += state.sealed
        self.failed += state.failed
        self.suppressed += state.suppressed
        self.dropped += state.dropped
        self.retries += state.retries
        self.failures.update(state.failures)
