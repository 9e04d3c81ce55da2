"""Questions about a record table: what is in it, what failed and why, what became of one child.

Every answer says in ``shows`` which rows it looked at: the current row of every URI (the latest), of the whole table or
under one semantic fingerprint.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from pydantic import BaseModel, ConfigDict

from rayorch_flows.program.outcomes import ItemOutcome
from rayorch_flows.records.arrow import ArrowTable, pa, pc
from rayorch_flows.records.table import RecordTable
from rayorch_flows.uris import local_path, uri_of_path

_FAILURE_COLUMNS = ("uri", "cause_kind", "cause", "retryable", "attempt", "microbatch_id", "committed_at")


class CauseCount(BaseModel):
    """How many source items (or children) failed of one kind of cause, with one message as an example."""

    model_config = ConfigDict(frozen=True)

    cause_kind: str
    count: int
    example: str


class Summary(BaseModel):
    """The table in numbers."""

    model_config = ConfigDict(frozen=True)

    shows: str
    sources: int
    present: int
    failed: int
    dropped: int
    retryable: int
    children: int
    children_by_outcome: dict[str, int]
    failures: tuple[CauseCount, ...]
    child_failures: tuple[CauseCount, ...]


@dataclass(frozen=True, slots=True)
class Child:
    """One Entity below a source item, as the table lists it."""

    domain: str
    ordinals: tuple[int, ...]
    outcome: ItemOutcome
    cause_kind: str
    cause: str


@dataclass(frozen=True, slots=True)
class Lineage:
    """Where an Entity comes from: its row in the table, itself (None: the source item), its ancestors from the
    top, and all that lies below it."""

    uri: str
    row: dict[str, Any]
    child: Child | None
    ancestors: tuple[Child, ...]
    descendants: tuple[Child, ...]


def summary(table: RecordTable, *, semantic_fingerprint: str | None = None) -> Summary:
    """Counts of the current rows and of their children."""
    rows = table.current(
        ["uri", "outcome", "cause_kind", "cause", "retryable", "n_children", "children"],
        semantic_fingerprint=semantic_fingerprint,
    )
    outcomes = _counts(rows["outcome"])
    children = _flat_children(rows)
    failed = rows.filter(pc.equal(rows["outcome"], ItemOutcome.FAILED.value))
    lost = children.filter(
        pc.is_in(children["outcome"], pa.array([ItemOutcome.FAILED.value, ItemOutcome.SUPPRESSED.value], pa.string()))
    )
    return Summary(
        shows=shows(semantic_fingerprint),
        sources=rows.num_rows,
        present=outcomes.get(ItemOutcome.PRESENT.value, 0),
        failed=outcomes.get(ItemOutcome.FAILED.value, 0),
        dropped=outcomes.get(ItemOutcome.DROPPED.value, 0),
        retryable=int(pc.sum(rows["retryable"]).as_py() or 0),
        children=children.num_rows,
        children_by_outcome=_counts(children["outcome"]),
        failures=_by_cause(failed),
        child_failures=_by_cause(lost),
    )


def failures(
    table: RecordTable, *, cause_kind: str | None = None, semantic_fingerprint: str | None = None
) -> ArrowTable:
    """The current rows that failed, by kind of cause and URI."""
    rows = table.current(["outcome", *_FAILURE_COLUMNS], semantic_fingerprint=semantic_fingerprint)
    rows = rows.filter(pc.equal(rows["outcome"], ItemOutcome.FAILED.value)).select(list(_FAILURE_COLUMNS))
    if cause_kind is not None:
        rows = rows.filter(pc.equal(rows["cause_kind"], cause_kind))
    return rows.sort_by([("cause_kind", "ascending"), ("uri", "ascending")])


def failed_children(
    table: RecordTable, *, cause_kind: str | None = None, semantic_fingerprint: str | None = None
) -> ArrowTable:
    """Children of current rows that failed or were suppressed: uri, domain, ordinals, outcome, cause_kind, cause."""
    rows = _flat_children(table.current(["uri", "children"], semantic_fingerprint=semantic_fingerprint), with_uri=True)
    lost = pa.array([ItemOutcome.FAILED.value, ItemOutcome.SUPPRESSED.value], pa.string())
    rows = rows.filter(pc.is_in(rows["outcome"], lost))
    return rows if cause_kind is None else rows.filter(pc.equal(rows["cause_kind"], cause_kind))


def history(table: RecordTable, uri: str) -> list[dict[str, Any]]:
    """Every row of one URI, the current one first, under whatever fingerprint."""
    rows = table.rows(among={"uri": [_as_stored(uri)]})
    return cast("list[dict[str, Any]]", rows.sort_by([("committed_at", "descending")]).to_pylist())


def row_of(table: RecordTable, uri: str, *, semantic_fingerprint: str | None = None) -> dict[str, Any] | None:
    """The current row of one URI, or None."""
    for row in history(table, uri):
        if semantic_fingerprint in (None, row["semantic_fingerprint"]):
            return row
    return None


def children_of(table: RecordTable, uri: str, *, semantic_fingerprint: str | None = None) -> list[Child]:
    """The children in the current row of one URI, in the order of the row."""
    row = row_of(table, uri, semantic_fingerprint=semantic_fingerprint)
    return [] if row is None else _children(row)


def lineage(
    table: RecordTable, uri: str, ordinals: tuple[int, ...] = (), *, semantic_fingerprint: str | None = None
) -> list[Lineage]:
    """From a URI and a path of ordinals to what lies there: one answer for each Domain that has such an Entity.

    No answer means that the table does not hold it. ``ordinals=()`` is the source item itself.
    """
    row = row_of(table, uri, semantic_fingerprint=semantic_fingerprint)
    if row is None:
        return []
    children = _children(row)
    depth = len(ordinals)
    below = tuple(c for c in children if len(c.ordinals) > depth and c.ordinals[:depth] == ordinals)
    if depth == 0:
        return [Lineage(row["uri"], row, None, (), below)]
    above = tuple(c for c in children if len(c.ordinals) < depth and ordinals[: len(c.ordinals)] == c.ordinals)
    here = [child for child in children if child.ordinals == ordinals]
    return [Lineage(row["uri"], row, child, above, below) for child in here]


def shows(semantic_fingerprint: str | None) -> str:
    """In words, which rows an answer looks at."""
    if semantic_fingerprint is None:
        return "the current row of every source"
    return f"the current row of every source under fingerprint {semantic_fingerprint[:12]}"


def _as_stored(uri: str) -> str:
    if local_path(uri) is None or uri.startswith("file://"):
        return uri
    return uri_of_path(uri)


def _children(row: dict[str, Any]) -> list[Child]:
    return [
        Child(
            child["domain"],
            tuple(child["ordinals"]),
            ItemOutcome(child["outcome"]),
            child["cause_kind"] or "",
            child["cause"] or "",
        )
        for child in cast("list[dict[str, Any]]", row["children"] or [])
    ]


def _flat_children(rows: ArrowTable, *, with_uri: bool = False) -> ArrowTable:
    children = rows["children"].combine_chunks()
    flat: Any = pa.Table.from_struct_array(children.flatten())
    if with_uri:
        uris = rows["uri"].combine_chunks().take(pc.list_parent_indices(children))
        flat = flat.add_column(0, "uri", uris)
    return flat


def _counts(column: Any) -> dict[str, int]:
    return {
        str(entry["values"]): int(entry["counts"])
        for entry in cast("list[dict[str, Any]]", pc.value_counts(column).to_pylist())
    }


def _by_cause(rows: ArrowTable) -> tuple[CauseCount, ...]:
    grouped = (
        rows.select(["cause_kind", "cause"])
        .group_by("cause_kind")
        .aggregate([("cause", "min"), ("cause", "count", pc.CountOptions(mode="all"))])
    )
    found = [
        CauseCount(cause_kind=row["cause_kind"] or "", count=row["cause_count"], example=row["cause_min"] or "")
        for row in cast("list[dict[str, Any]]", grouped.to_pylist())
    ]
    return tuple(sorted(found, key=lambda entry: (-entry.count, entry.cause_kind)))
