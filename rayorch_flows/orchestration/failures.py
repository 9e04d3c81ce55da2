"""What failed according to a record table."""

from __future__ import annotations

from collections import Counter

from rayorch_flows.orchestration.places import TablePlace
from rayorch_flows.orchestration.report import child_name
from rayorch_flows.orchestration.summary import FailureLine
from rayorch_flows.orchestration.unit import child_failures, source_failures
from rayorch_flows.records.table import RecordTable

_COLUMNS = ("uri", "outcome", "cause_kind", "cause", "children")


def current_failures(place: TablePlace, kind: str | None = None) -> list[FailureLine]:
    """Failed source items, then failed children, in the latest row of every URI."""
    rows = RecordTable.open(place.uri, place.options).current(_COLUMNS)
    found = [*source_failures(rows), *child_failures(rows)]
    return [line for line in found if kind is None or line.cause_kind == kind]


def failures_text(found: list[FailureLine], shown: list[FailureLine]) -> str:
    """The shown ones with their causes, and how many there are of each kind."""
    if not found:
        return "No failures in the latest row of any source."
    lines: list[str] = []
    for line in shown:
        child = child_name(line)
        lines.append(f"{line.cause_kind:<15} {line.uri}" + (f" [{child}]" if child else ""))
        lines.append(f"{'':<15} {' '.join(line.cause.split())[:200]}")
    kinds = ", ".join(f"{count} {kind}" for kind, count in Counter(line.cause_kind for line in found).most_common())
    lines += ["", f"{len(found)} failures: {kinds}" + _rest(len(found) - len(shown))]
    return "\n".join(lines)


def _rest(hidden: int) -> str:
    return f" ({hidden} not shown, --limit 0 shows all)" if hidden else ""
