"""What rows of a record table say of outcomes and failures, in numbers and in lines."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final, cast

from rayorch_flows.orchestration.reporting.report import child_name
from rayorch_flows.orchestration.reporting.summary import FailureLine, MicrobatchSummary
from rayorch_flows.orchestration.settings.places import TablePlace
from rayorch_flows.program.outcomes import ItemOutcome
from rayorch_flows.records.arrow import ArrowTable, pc
from rayorch_flows.records.table import RecordTable

KEPT_FAILURES: Final = 200
_COLUMNS: Final = ("uri", "outcome", "cause_kind", "cause", "children")


def count_rows(rows: ArrowTable, summary: MicrobatchSummary) -> None:
    """Outcomes, children and failures of committed rows."""
    outcomes = Counter(cast("list[str]", rows["outcome"].to_pylist()))
    summary.present = outcomes[ItemOutcome.PRESENT]
    summary.failed = outcomes[ItemOutcome.FAILED]
    summary.dropped = outcomes[ItemOutcome.DROPPED]
    summary.children = int(pc.sum(rows["n_children"]).as_py() or 0)
    failures = list(source_failures(rows))
    summary.causes = dict(Counter(failure.cause_kind for failure in failures).most_common())
    children = child_failures(rows)
    summary.children_failed = len(children)
    summary.failures = [*failures, *children][:KEPT_FAILURES]


def source_failures(rows: ArrowTable) -> list[FailureLine]:
    failed = rows.filter(pc.equal(rows["outcome"], ItemOutcome.FAILED.value)).select(["uri", "cause_kind", "cause"])
    return [
        FailureLine(uri=row["uri"], cause_kind=row["cause_kind"] or "", cause=row["cause"] or "")
        for row in cast("list[dict[str, Any]]", failed.to_pylist())
    ]


def child_failures(rows: ArrowTable) -> list[FailureLine]:
    """Children that failed, and those suppressed under a source item that is present: the holes in it.

    Children suppressed together with their source item are in the table only: the item is a failure itself.
    """
    lists = rows["children"].combine_chunks()
    children = pc.list_flatten(lists)
    owners = pc.list_parent_indices(lists)
    outcome = pc.struct_field(children, "outcome")
    alive = pc.equal(rows["outcome"].combine_chunks().take(owners), ItemOutcome.PRESENT.value)
    hole = pc.and_(pc.equal(outcome, ItemOutcome.SUPPRESSED.value), alive)
    failed = pc.or_(pc.equal(outcome, ItemOutcome.FAILED.value), hole)
    parents = rows["uri"].combine_chunks().take(owners.filter(failed))
    return [
        FailureLine(
            uri=uri,
            cause_kind=child["cause_kind"] or "",
            cause=child["cause"] or "",
            domain=child["domain"],
            ordinals=tuple(child["ordinals"]),
        )
        for uri, child in zip(
            cast("list[str]", parents.to_pylist()),
            cast("list[dict[str, Any]]", children.filter(failed).to_pylist()),
            strict=True,
        )
    ]


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
