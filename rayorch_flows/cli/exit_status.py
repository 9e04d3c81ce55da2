"""How every command ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rayorch_flows.orchestration.reporting.summary import IngestSummary

OK: Final = 0
OVER_BUDGET: Final = 1
USAGE: Final = 2
INFRASTRUCTURE: Final = 3
INTERRUPTED: Final = 130
TERMINATED: Final = 143


def of_ingest(summary: IngestSummary) -> int:
    """Sources that are not in the table weigh more than an error budget that does not hold."""
    if summary.unaccounted:
        return INFRASTRUCTURE
    return OVER_BUDGET if summary.over_budget else OK
