from __future__ import annotations

import os
import pickle
import random
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from rayorch_flows.errors import TableError
from rayorch_flows.lineage.protocol import ChildOutcome
from rayorch_flows.program.outcomes import Cause, CauseKind, ItemOutcome
from rayorch_flows.records import table as table_module
from rayorch_flows.records.table import CommitResult, RecordTable
from tests.records.helpers import PRINT, RECORD, Outcome, commit, failed, item, manifest_of, present

ABC = [item("a"), item("b"), item("c")]
OTHER = "e" * 64


@pytest.fixture
def table(tmp_path: Path) -> RecordTable:
    return RecordTable(tmp_path / "t", RECORD, flow="pdf")


def outcomes(table: RecordTable) -> dict[str, str]:
    return {row["uri"][-1]: row["outcome"] for row in table.rows().to_pylist()}


def doubled(table: RecordTable) -> list[tuple[str, str, str]]:
    rows = table.rows(["uri", "content_hash", "semantic_fingerprint"]).to_pylist()
    counts = Counter(tuple(row.values()) for row in rows)
    return [key for key, count in counts.items() if count > 1]


def interrupt(monkeypatch: pytest.MonkeyPatch, *actions: Callable[[], object]) -> None:
    """Between reading the snapshot and writing the transaction, do one of these, once each."""
    real = table_module._decide
    left = list(actions)

    def decide(*args: Any) -> Any:
        decision = real(*args)
        if left:
            left.pop(0)()
        return decision

    monkeypatch.setattr(table_module, "_decide", decide)


def test_a_table_that_is_not_there_is_empty(table: RecordTable) -> None:
    assert (table.exists(), table.version()) == (False, -1)
    assert table.known(PRINT).num_rows == 0
    assert table.current().schema.equals(table.schema)


def test_committed_rows_come_back_as_they_were(table: RecordTable) -> None:
    sources = [item("ü #%20\n'\".pdf", size=7, modified_at=datetime(2026, 1, 1, 1, 2, 3, 456789, UTC), etag="e")]
    children = (ChildOutcome("page", (0, 2), ItemOutcome.FAILED, Cause(CauseKind.TIMEOUT, "slow")),)
    before = datetime.now(UTC)
    result = commit(table, sources, [present(0, "text\x00ü", children)], microbatch="mb", run="r", attempt=4)
    assert result == CommitResult(1, 1, 0, 0)
    [row] = table.rows().to_pylist()
    assert before <= row.pop("committed_at") <= datetime.now(UTC)
    assert row == {
        **sources[0].model_dump(),
        "outcome": "present",
        "cause_kind": None,
        "cause": None,
        "retryable": False,
        "n_children": 1,
        "children": [
            {"domain": "page", "ordinals": [0, 2], "outcome": "failed", "cause_kind": "timeout", "cause": "slow"}
        ],
        "text": "text\x00ü",
        "pages": 0,
        "microbatch_id": "mb",
        "flow_run_id": "r",
        "semantic_fingerprint": PRINT,
        "attempt": 4,
    }
    assert table.rows().schema.names == table.schema.names


def test_committing_again_changes_nothing(table: RecordTable) -> None:
    made = [present(0), failed(1), Outcome(2, ItemOutcome.DROPPED)]
    commit(table, ABC, made)
    before = table.rows().to_pylist()
    assert commit(table, ABC, made) == CommitResult(1, 0, 0, 3)
    assert commit(table, ABC[:1], microbatch="other").skipped == 1
    assert table.rows().to_pylist() == before
    assert table.version() == 1


def test_a_rerun_replaces_failed_rows_and_only_those(table: RecordTable) -> None:
    commit(table, ABC, [present(0, "old"), failed(1), Outcome(2, ItemOutcome.DROPPED)])
    result = commit(table, [*ABC, item("d")], microbatch="again", run="rerun")
    assert (result.inserted, result.replaced, result.skipped) == (1, 1, 2)
    assert outcomes(table) == {"a": "present", "b": "present", "c": "dropped", "d": "present"}
    rows = {row["uri"][-1]: row for row in table.rows().to_pylist()}
    assert (rows["a"]["text"], rows["a"]["microbatch_id"]) == ("old", "m")
    assert (rows["b"]["flow_run_id"], rows["b"]["microbatch_id"]) == ("rerun", "again")
    assert doubled(table) == []


def test_a_failure_replaces_an_older_failure_but_never_a_result(table: RecordTable) -> None:
    commit(table, ABC[:2], [present(0), failed(1, message="old")])
    result = commit(table, ABC[:2], [failed(0), failed(1, message="new")], run="rerun")
    assert (result.replaced, result.skipped) == (1, 1)
    assert [(r["outcome"], r["cause"]) for r in table.rows().sort_by("uri").to_pylist()] == [
        ("present", None),
        ("failed", "new"),
    ]


def test_replacing_keeps_the_rows_of_other_uris_with_the_same_content(table: RecordTable) -> None:
    same = [item(name, "0" * 32) for name in "abc"]
    commit(table, same, [present(0), failed(1), failed(2)])
    commit(table, same, [present(0), failed(1), failed(2)], fingerprint=OTHER)
    assert commit(table, same[1:2], run="rerun").replaced == 1
    assert outcomes(RecordTable(table.uri, RECORD)) is not None
    own = [row for row in table.rows().to_pylist() if row["semantic_fingerprint"] == PRINT]
    assert sorted((row["uri"][-1], row["outcome"]) for row in own) == [
        ("a", "present"),
        ("b", "present"),
        ("c", "failed"),
    ]
    assert table.rows().num_rows == 6


def test_unreadable_files_share_an_empty_hash_and_stay_apart(table: RecordTable) -> None:
    blind = [item("a", ""), item("b", "")]
    commit(table, blind, [failed(0), failed(1)])
    assert commit(table, blind[:1], run="rerun").replaced == 1
    assert outcomes(table) == {"a": "present", "b": "failed"}


def test_fingerprints_share_a_table(table: RecordTable) -> None:
    commit(table, ABC)
    assert commit(table, ABC, fingerprint=OTHER).inserted == 3
    assert table.rows().num_rows == 6
    assert table.known(PRINT).num_rows == table.known(OTHER).num_rows == 3
    assert set(table.current(["semantic_fingerprint"])["semantic_fingerprint"].to_pylist()) == {OTHER}
    assert table.current(semantic_fingerprint=PRINT).num_rows == 3


def test_what_is_committed_of_a_microbatch_is_looked_up_by_key(table: RecordTable) -> None:
    commit(table, [item("a", "1" * 32), item("b"), item("c")], microbatch="theirs")
    manifest = manifest_of([item("a"), item("b"), item("d")])
    assert table.committed(manifest, ["uri", "microbatch_id"]).to_pylist() == [
        {"uri": "/data/b", "microbatch_id": "theirs"}
    ]


def test_one_commit_with_a_repeated_key_keeps_the_better_row(table: RecordTable) -> None:
    commit(table, [ABC[0], ABC[0], ABC[1], ABC[1]], [failed(0), present(1), present(2), failed(3)])
    assert outcomes(table) == {"a": "present", "b": "present"}
    assert doubled(table) == []


def test_the_current_row_is_the_last_committed_even_if_a_clock_was_ahead(
    table: RecordTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ahead(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime(2100, 1, 1, tzinfo=tz)

    with monkeypatch.context() as patch:
        patch.setattr(table_module, "datetime", Ahead)
        commit(table, [item("a", "1" * 32)])
    commit(table, [item("a", "2" * 32)])
    assert table.current(["content_hash"]).to_pylist() == [{"content_hash": "2" * 32}]


def test_refresh_notes_a_new_time_and_makes_the_row_current(table: RecordTable) -> None:
    old, new = item("a", "1" * 32), item("a", "2" * 32)
    commit(table, [old, item("b")], [present(0, "old"), present(1, "b")])
    commit(table, [new])
    later = old.model_copy(update={"size": 5, "modified_at": datetime(2026, 2, 2, tzinfo=UTC), "etag": "tag"})
    assert table.refresh([later, item("unknown")], semantic_fingerprint=PRINT) == 1
    [row] = [row for row in table.current().to_pylist() if row["uri"] == "/data/a"]
    assert (row["content_hash"], row["size"], row["modified_at"], row["etag"], row["text"]) == (
        "1" * 32,
        5,
        datetime(2026, 2, 2, tzinfo=UTC),
        "tag",
        "old",
    )
    assert table.rows().num_rows == 3
    assert table.refresh([], semantic_fingerprint=PRINT) == 0
    assert table.refresh([old], semantic_fingerprint=OTHER) == 0


class TestConflicts:
    """Another process commits between this one's read and its write."""

    def test_the_same_rows_are_committed_once(self, table: RecordTable, monkeypatch: pytest.MonkeyPatch) -> None:
        table.create()
        interrupt(monkeypatch, lambda: commit(RecordTable(table.uri, RECORD), ABC[1:], microbatch="theirs"))
        assert commit(table, ABC) == CommitResult(2, 1, 0, 2)
        assert doubled(table) == []
        assert table.rows().num_rows == 3

    def test_a_failed_row_is_replaced_once(self, table: RecordTable, monkeypatch: pytest.MonkeyPatch) -> None:
        commit(table, ABC, [failed(0), failed(1), failed(2)])
        interrupt(monkeypatch, lambda: commit(RecordTable(table.uri, RECORD), ABC[:2], run="theirs"))
        result = commit(table, ABC, run="mine")
        assert (result.replaced, result.skipped) == (1, 2)
        assert doubled(table) == []
        assert outcomes(table) == dict.fromkeys("abc", "present")

    def test_a_failure_that_came_in_between_is_replaced(
        self, table: RecordTable, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        table.create()
        theirs = [failed(0), failed(1), failed(2)]
        interrupt(monkeypatch, lambda: commit(RecordTable(table.uri, RECORD), ABC, theirs, run="theirs"))
        assert commit(table, ABC, run="mine").replaced == 3
        assert outcomes(table) == dict.fromkeys("abc", "present")
        assert doubled(table) == []

    def test_many_in_a_row(self, table: RecordTable, monkeypatch: pytest.MonkeyPatch) -> None:
        table.create()

        def theirs(number: int) -> Callable[[], object]:
            return lambda: commit(RecordTable(table.uri, RECORD), [item(f"x{number}")])

        interrupt(monkeypatch, *(theirs(number) for number in range(5)))
        assert commit(table, ABC).inserted == 3
        assert table.rows().num_rows > 3
        assert doubled(table) == []

    @pytest.mark.parametrize("replacing", [False, True])
    def test_compaction_in_between(self, table: RecordTable, monkeypatch: pytest.MonkeyPatch, replacing: bool) -> None:
        commit(table, ABC[:1], [failed(0)])
        commit(table, ABC[1:2])
        interrupt(monkeypatch, lambda: RecordTable(table.uri, RECORD).maintain())
        commit(table, ABC[:1] if replacing else ABC[2:], run="mine")
        expected = {"a": "present", "b": "present"} if replacing else {"a": "failed", "b": "present", "c": "present"}
        assert outcomes(table) == expected

    def test_refresh_in_between(self, table: RecordTable, monkeypatch: pytest.MonkeyPatch) -> None:
        commit(table, ABC, [failed(0), present(1), present(2)])
        other = RecordTable(table.uri, RECORD)
        moved = ABC[0].model_copy(update={"size": 99})
        interrupt(monkeypatch, lambda: other.refresh([moved], semantic_fingerprint=PRINT))
        commit(table, ABC, run="mine")
        assert outcomes(table) == dict.fromkeys("abc", "present")
        assert doubled(table) == []

    def test_it_gives_up_in_the_end(self, table: RecordTable, monkeypatch: pytest.MonkeyPatch) -> None:
        table.create()
        monkeypatch.setattr(table_module, "_PATIENCE_S", -1.0)
        interrupt(monkeypatch, lambda: commit(RecordTable(table.uri, RECORD), [item("x")]))
        with pytest.raises(TableError, match="gave up after 1 tries"):
            commit(table, ABC)


def test_maintenance_changes_no_row(table: RecordTable) -> None:
    for number in range(25):
        commit(table, [item(f"{number:02}")], [present(0, f"text {number}")])
    before = sorted(table.rows().to_pylist(), key=lambda row: row["uri"])
    table.maintain()
    assert sorted(table.rows().to_pylist(), key=lambda row: row["uri"]) == before
    assert len(DeltaTable(table.uri).file_uris()) == 1
    RecordTable(table.uri + "-none", RECORD).maintain()


def test_staging_survives_maintenance(table: RecordTable) -> None:
    commit(table, ABC)
    staged = Path(table.uri) / "_rayorch_flows" / "staging" / "x.arrow"
    staged.parent.mkdir(parents=True)
    staged.write_bytes(b"x")
    os.utime(staged, (0, 0))
    DeltaTable(table.uri).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)
    assert staged.exists()


def test_long_names_with_a_common_beginning_are_told_apart(table: RecordTable) -> None:
    sources = [item("x" * 200 + end) for end in ("", "a", "\U0010ffff" * 40, "é")]
    for source in sources:
        commit(table, [source])
    for source in sources:
        assert commit(table, [source], microbatch="again").skipped == 1
    assert table.rows().num_rows == 4


def test_names_with_any_characters_are_told_apart(table: RecordTable) -> None:
    chance = random.Random(3)
    characters = "'\"\\%_#;-\n\r\t /*$?:`{}[]|&^~é漢\U0010ffff\x01ab"
    names = sorted({"".join(chance.choices(characters, k=chance.randrange(1, 12))) for _ in range(120)})
    sources = [item(name, f"{number:032x}") for number, name in enumerate(names)]
    commit(table, sources)
    assert commit(table, sources, microbatch="again").skipped == len(sources)
    assert sorted(table.rows(["uri"])["uri"].to_pylist()) == sorted(source.uri for source in sources)


def test_rows_that_another_writer_rewrote_can_still_be_read(table: RecordTable) -> None:
    commit(table, ABC, [present(0), failed(1), present(2)])
    DeltaTable(table.uri).delete("uri = '/data/c'")
    assert table.known(PRINT).num_rows == 2
    assert commit(table, ABC, run="rerun") == CommitResult(3, 1, 1, 1)
    assert doubled(table) == []


class TestPlaces:
    def test_creating_twice_is_fine(self, table: RecordTable) -> None:
        table.create()
        table.create()
        assert table.version() == 0

    def test_another_flow_is_refused(self, table: RecordTable) -> None:
        table.create()
        with pytest.raises(TableError, match="flow 'pdf', not of 'video'"):
            RecordTable(table.uri, RECORD, flow="video").known(PRINT)

    def test_other_columns_are_named(self, table: RecordTable) -> None:
        table.create()
        other = RecordTable(table.uri, pa.schema([("text", pa.int64()), ("new", pa.string())]), flow="pdf")
        with pytest.raises(TableError, match=r"it lacks: new; it also has: pages; of another type: text \(string"):
            other.known(PRINT)

    def test_a_folder_with_other_things_in_it_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "holiday.jpg").write_bytes(b"")
        with pytest.raises(TableError, match=r"not empty: it holds 'holiday.jpg'"):
            RecordTable(tmp_path, RECORD).create()
        with pytest.raises(TableError, match="file where the table should be"):
            RecordTable(tmp_path / "holiday.jpg", RECORD).create()

    def test_a_folder_with_only_manifests_is_fine(self, tmp_path: Path) -> None:
        (tmp_path / "_rayorch_flows").mkdir()
        RecordTable(tmp_path, RECORD).create()

    def test_a_delta_table_of_somebody_else_is_refused(self, tmp_path: Path) -> None:
        DeltaTable.create(str(tmp_path / "t"), schema=pa.schema([("x", pa.int64())]))
        with pytest.raises(TableError, match="other columns"):
            RecordTable(tmp_path / "t", RECORD).create()
        with pytest.raises(TableError, match="not a record table"):
            RecordTable.open(tmp_path / "t")

    def test_a_broken_log_is_a_table_error(self, table: RecordTable) -> None:
        table.create()
        (Path(table.uri) / "_delta_log" / "00000000000000000000.json").write_text("{broken")
        with pytest.raises(TableError, match="cannot open"):
            table.known(PRINT)

    def test_opening_needs_no_flow(self, table: RecordTable) -> None:
        commit(table, ABC)
        opened = RecordTable.open(table.uri)
        assert (opened.flow, opened.record_schema.names) == ("pdf", ["text", "pages"])
        assert opened.current().num_rows == 3
        with pytest.raises(TableError, match="no record table here"):
            RecordTable.open(table.uri + "-none")

    @pytest.mark.parametrize("name", ["with blank", "hash#", "per%zent", "ünï", "what?", "a'b"])
    def test_odd_folders_work_by_path_and_by_uri(self, tmp_path: Path, name: str) -> None:
        commit(RecordTable(tmp_path / name, RECORD), ABC)
        again = RecordTable((tmp_path / name).as_uri(), RECORD)
        assert again.uri == str(tmp_path / name)
        assert commit(again, ABC).skipped == 3
        assert sorted(os.listdir(tmp_path)) == [name]

    def test_a_table_travels_by_pickle_and_hides_its_secrets(self, table: RecordTable) -> None:
        commit(table, ABC)
        assert pickle.loads(pickle.dumps(table)).known(PRINT).num_rows == 3
        assert "hunter2" not in repr(RecordTable("s3://b/t", RECORD, {"AWS_SECRET_ACCESS_KEY": "hunter2"}))

    def test_a_fingerprint_that_is_none_is_refused(self, table: RecordTable) -> None:
        commit(table, ABC, [failed(0), failed(1), failed(2)], fingerprint="it's")
        with pytest.raises(TableError, match="letters and digits"):
            commit(table, ABC, fingerprint="it's", run="rerun")
