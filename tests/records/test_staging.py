from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pytest

from rayorch_flows.errors import TableError
from rayorch_flows.program.outcomes import Cause, CauseKind
from rayorch_flows.records.staging import StagingArea, StagingSink
from tests.records.helpers import PRINT, RECORD, failed, item, manifest_of, present

MANIFEST = manifest_of([item("a"), item("b"), item("c"), item("d")])
ID = MANIFEST.microbatch_id


@pytest.fixture
def sink(tmp_path: Path) -> StagingSink:
    return StagingSink(str(tmp_path), MANIFEST, RECORD)


@pytest.fixture
def area(tmp_path: Path) -> StagingArea:
    return StagingArea(str(tmp_path), PRINT, RECORD)


def texts(area: StagingArea) -> list[tuple[int, str, str | None, int]]:
    rows = area.read(ID).rows.to_pylist()
    return [(r["source_index"], r["outcome"], r["text"] or r["cause"], r["attempt"]) for r in rows]


def test_nothing_is_staged_at_first(area: StagingArea) -> None:
    staged = area.read(ID)
    assert (staged.rows.num_rows, staged.done, staged.missing(MANIFEST)) == (0, frozenset(), [0, 1, 2, 3])


def test_what_is_written_is_there_at_once(sink: StagingSink, area: StagingArea) -> None:
    sink.write(ID, 1, [present(2, "c")])
    assert area.read(ID).missing(MANIFEST) == [0, 1, 3]
    sink.write(ID, 1, [present(0, "a"), failed(1)])
    staged = area.read(ID)
    assert (staged.done, staged.retryable, staged.missing(MANIFEST)) == ({0, 1, 2}, frozenset(), [3])
    assert sink.done(ID) == {0, 1, 2}


def test_a_retryable_failure_runs_again_and_is_kept_for_the_end(sink: StagingSink, area: StagingArea) -> None:
    sink.write(ID, 1, [present(0, "a"), failed(1, retryable=True, message="first")])
    sink.write(ID, 2, [failed(1, retryable=True, message="second")])
    staged = area.read(ID)
    assert (staged.done, staged.retryable, staged.missing(MANIFEST)) == ({0}, {1}, [1, 2, 3])
    assert sink.done(ID) == {0}
    assert [row["source_index"] for row in staged.final().to_pylist()] == [0]
    complete = staged.complete(MANIFEST, RECORD, 2, Cause(CauseKind.CANCELLED, "gave up")).to_pylist()
    assert [(row["source_index"], row["outcome"], row["cause"]) for row in complete] == [
        (0, "present", None),
        (1, "failed", "second"),
        (2, "failed", "gave up"),
        (3, "failed", "gave up"),
    ]


def test_a_later_attempt_mends_a_failure_but_never_a_result(sink: StagingSink, area: StagingArea) -> None:
    sink.write(ID, 1, [present(0, "first"), failed(1, retryable=True), failed(2), failed(3)])
    sink.write(ID, 2, [failed(0), present(1, "mended"), failed(2, retryable=True), present(3, "late")])
    sink.write(ID, 3, [present(0, "again"), failed(1)])
    assert texts(area) == [
        (0, "present", "first", 1),
        (2, "failed", "no", 1),
        (1, "present", "mended", 2),
        (3, "present", "late", 2),
    ]


def test_two_hosts_at_one_attempt_do_not_double_or_overwrite(tmp_path: Path, area: StagingArea) -> None:
    one = StagingSink(str(tmp_path), MANIFEST, RECORD)
    two = pickle.loads(pickle.dumps(one))
    one.write(ID, 1, [present(0, "a"), present(1, "b")])
    two.write(ID, 1, [present(1, "b"), present(2, "c")])
    assert sorted(row[0] for row in texts(area)) == [0, 1, 2]


def test_a_pickled_sink_that_has_written_takes_a_new_name(sink: StagingSink, area: StagingArea) -> None:
    sink.write(ID, 1, [present(0, "a")])
    copy = pickle.loads(pickle.dumps(sink))
    copy.write(ID, 1, [present(1, "b")])
    sink.write(ID, 1, [present(2, "c")])
    assert sorted(row[0] for row in texts(area)) == [0, 1, 2]


def test_torn_and_foreign_files_are_ignored(tmp_path: Path, sink: StagingSink, area: StagingArea) -> None:
    sink.write(ID, 1, [present(0, "a" * 5000)])
    sink.write(ID, 1, [present(1, "b")])
    folder = tmp_path / "_rayorch_flows" / "staging" / PRINT / ID
    first, _ = sorted(folder.iterdir())
    whole = first.read_bytes()
    for length in (0, 7, len(whole) // 2, len(whole) - 1):
        first.write_bytes(whole[:length])
        assert area.read(ID).done == {1}, length
    first.write_bytes(whole)
    (folder / "notes.txt").write_text("x")
    (folder / ".tmp-1").write_bytes(whole)
    assert area.read(ID).done == {0, 1}


def test_rows_staged_under_another_record_schema_run_again(tmp_path: Path, sink: StagingSink) -> None:
    sink.write(ID, 1, [present(0, "a")])
    assert StagingArea(str(tmp_path), PRINT, pa.schema([("other", pa.string())])).read(ID).rows.num_rows == 0


def test_clearing_forgets_one_microbatch(tmp_path: Path, sink: StagingSink, area: StagingArea) -> None:
    other = manifest_of([item("z")])
    StagingSink(str(tmp_path), other, RECORD).write(other.microbatch_id, 1, [present(0)])
    sink.write(ID, 1, [present(0)])
    area.clear(ID)
    area.clear(ID)
    assert area.read(ID).done == frozenset()
    assert area.read(other.microbatch_id).done == {0}


def test_a_sink_refuses_another_microbatch(sink: StagingSink) -> None:
    with pytest.raises(TableError, match="stages microbatch"):
        sink.write("other", 1, [present(0)])


def test_no_outcomes_no_file(tmp_path: Path, sink: StagingSink) -> None:
    sink.write(ID, 1, [])
    sink.flush(ID)
    sink.close(ID)
    assert not (tmp_path / "_rayorch_flows").exists()


def test_a_sink_shows_no_secrets() -> None:
    sink = StagingSink("s3://bucket/t", MANIFEST, RECORD, {"AWS_SECRET_ACCESS_KEY": "hunter2"})
    assert "hunter2" not in repr(sink)
