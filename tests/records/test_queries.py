from __future__ import annotations

from pathlib import Path

import pytest

from rayorch_flows.lineage.protocol import ChildOutcome
from rayorch_flows.program.outcomes import Cause, CauseKind, ItemOutcome
from rayorch_flows.records import queries
from rayorch_flows.records.queries import CauseCount, Child
from rayorch_flows.records.table import RecordTable
from tests.records.helpers import RECORD, Outcome, commit, failed, item, present

SLOW = Cause(CauseKind.TIMEOUT, "slow")
TREE = (
    ChildOutcome("page", (0,), ItemOutcome.PRESENT),
    ChildOutcome("page", (1,), ItemOutcome.SUPPRESSED, SLOW),
    ChildOutcome("region", (1, 0), ItemOutcome.PRESENT),
    ChildOutcome("region", (1, 1), ItemOutcome.FAILED, SLOW),
    ChildOutcome("table", (1, 1), ItemOutcome.DROPPED),
    ChildOutcome("cell", (1, 1, 0), ItemOutcome.PRESENT),
)


@pytest.fixture
def table(tmp_path: Path) -> RecordTable:
    table = RecordTable(tmp_path / "t", RECORD)
    commit(
        table,
        [item("a"), item("b"), item("c"), item("d"), item("e")],
        [
            present(0, "old", (ChildOutcome("page", (0,), ItemOutcome.FAILED, SLOW),)),
            failed(1, message="z broken"),
            failed(2, message="a broken", retryable=True),
            Outcome(3, ItemOutcome.FAILED, cause=Cause(CauseKind.ENCRYPTED, "locked")),
            Outcome(4, ItemOutcome.DROPPED),
        ],
    )
    commit(table, [item("a", "1" * 32)], [present(0, "new", TREE)], fingerprint="e" * 64)
    return table


def test_the_summary_counts_current_rows(table: RecordTable) -> None:
    found = queries.summary(table)
    assert (found.sources, found.present, found.failed, found.dropped, found.retryable) == (5, 1, 3, 1, 1)
    assert found.children == 6
    assert found.children_by_outcome == {"present": 3, "suppressed": 1, "failed": 1, "dropped": 1}
    assert found.failures == (
        CauseCount(cause_kind="corrupt", count=2, example="a broken"),
        CauseCount(cause_kind="encrypted", count=1, example="locked"),
    )
    assert found.child_failures == (CauseCount(cause_kind="timeout", count=2, example="slow"),)
    assert found.shows == "the current row of every source"


def test_a_fingerprint_narrows_the_summary(table: RecordTable) -> None:
    found = queries.summary(table, semantic_fingerprint="e" * 64)
    assert (found.sources, found.failed) == (1, 0)
    assert "eeeeeeeeeeee" in found.shows


def test_an_empty_table_has_an_empty_summary(tmp_path: Path) -> None:
    empty = RecordTable(tmp_path / "none", RECORD)
    assert queries.summary(empty).sources == 0
    assert queries.failures(empty).num_rows == 0
    assert queries.failed_children(empty).num_rows == 0
    assert queries.lineage(empty, "/data/a") == []


def test_failures_are_sorted_by_cause(table: RecordTable) -> None:
    assert [(r["cause_kind"], r["uri"]) for r in queries.failures(table).to_pylist()] == [
        ("corrupt", "/data/b"),
        ("corrupt", "/data/c"),
        ("encrypted", "/data/d"),
    ]
    assert queries.failures(table, cause_kind="encrypted")["cause"].to_pylist() == ["locked"]


def test_failed_children_name_their_parent(table: RecordTable) -> None:
    rows = queries.failed_children(table).to_pylist()
    assert [(r["uri"], r["domain"], r["ordinals"], r["outcome"]) for r in rows] == [
        ("/data/a", "page", [1], "suppressed"),
        ("/data/a", "region", [1, 1], "failed"),
    ]
    assert queries.failed_children(table, cause_kind="corrupt").num_rows == 0


def test_history_has_the_current_row_first(table: RecordTable) -> None:
    assert [row["text"] for row in queries.history(table, "/data/a")] == ["new", "old"]
    row = queries.row_of(table, "/data/a", semantic_fingerprint="f" * 64)
    assert row is not None
    assert row["text"] == "old"
    assert queries.row_of(table, "/data/none") is None


def test_paths_are_found_however_they_are_spelt(table: RecordTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    assert len(queries.history(table, "data/../data/a")) == 2


def test_children_keep_their_order(table: RecordTable) -> None:
    assert [(c.domain, c.ordinals) for c in queries.children_of(table, "/data/a")] == [
        (c.domain, c.ordinals) for c in TREE
    ]
    assert queries.children_of(table, "/data/none") == []


def test_lineage_goes_up_and_down(table: RecordTable) -> None:
    region, other = queries.lineage(table, "/data/a", (1, 1))
    assert region.child == Child("region", (1, 1), ItemOutcome.FAILED, "timeout", "slow")
    assert other.child is not None
    assert other.child.domain == "table"
    assert [(c.domain, c.ordinals) for c in region.ancestors] == [("page", (1,))]
    assert [(c.domain, c.ordinals) for c in region.descendants] == [("cell", (1, 1, 0))]
    [source] = queries.lineage(table, "/data/a")
    assert source.child is None
    assert source.row["text"] == "new"
    assert len(source.descendants) == 6
    assert queries.lineage(table, "/data/a", (9,)) == []
