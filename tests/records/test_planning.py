from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayorch_flows.errors import UsageError
from rayorch_flows.records import planning
from rayorch_flows.records.planning import Retry, adopt, balance, find_pending, plan_microbatches
from rayorch_flows.records.schema import table_schema
from rayorch_flows.records.source import SourceItem, hash_sources, list_sources
from rayorch_flows.records.table import KNOWN_COLUMNS
from tests.records.helpers import PRINT, RECORD, item, manifest_of

T0 = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = pa.schema([table_schema(RECORD).field(name) for name in KNOWN_COLUMNS])


def known_rows(*rows: tuple[SourceItem, str, bool, int]) -> pa.Table:
    """(item, outcome, retryable, minutes after T0)."""
    return pa.Table.from_pylist(
        [
            {
                **entry.model_dump(),
                "outcome": outcome,
                "retryable": retryable,
                "committed_at": T0 + timedelta(minutes=minute),
            }
            for entry, outcome, retryable, minute in rows
        ],
        schema=SCHEMA,
    )


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for name in ("a", "b", "c"):
        (tmp_path / name).write_bytes(name.encode())
    return tmp_path


def known_of(folder: Path, outcome: str = "present", retryable: bool = False) -> pa.Table:
    return known_rows(*((entry, outcome, retryable, 0) for entry in hash_sources(list_sources(folder))))


def test_everything_is_pending_for_an_empty_table(files: Path) -> None:
    pending = find_pending(list_sources(files), SCHEMA.empty_table())
    assert [entry.content_hash for entry in pending.items] == [
        entry.content_hash for entry in hash_sources(list_sources(files))
    ]
    assert pending.unchanged == 0


def test_what_is_known_by_size_and_time_is_not_even_opened(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = known_of(files)
    hashed: list[SourceItem] = []
    monkeypatch.setattr(planning, "hash_sources", lambda items, **_: hashed.extend(items) or list(items))
    pending = find_pending(list_sources(files), known)
    assert (pending.items, pending.unchanged, hashed) == ([], 3, [])


def test_changed_content_is_pending_and_touched_content_is_moved(files: Path) -> None:
    known = known_of(files)
    (files / "a").write_bytes(b"changed")
    (files / "b").touch()
    pending = find_pending(list_sources(files), known)
    assert [entry.uri for entry in pending.items] == [str(files / "a")]
    assert [entry.uri for entry in pending.moved] == [str(files / "b")]
    assert pending.unchanged == 2


def test_content_that_comes_back_is_moved_not_ingested_again(files: Path) -> None:
    old, *_ = hash_sources(list_sources(files))
    newer = old.model_copy(update={"content_hash": "other", "size": 9})
    known = known_rows((old, "present", False, 0), (newer, "present", False, 1))
    pending = find_pending(list_sources(files)[:1], known)
    assert (pending.items, [entry.content_hash for entry in pending.moved]) == ([], [old.content_hash])


@pytest.mark.parametrize(
    ("retry", "retryable", "again"),
    [
        (Retry.NONE, True, False),
        (Retry.RETRYABLE, False, False),
        (Retry.RETRYABLE, True, True),
        (Retry.FAILED, False, True),
    ],
)
def test_failed_rows_come_again_only_if_wanted(files: Path, retry: Retry, retryable: bool, again: bool) -> None:
    pending = find_pending(list_sources(files), known_of(files, "failed", retryable), retry=retry)
    assert len(pending.retried) == (3 if again else 0)
    assert pending.unchanged == (0 if again else 3)
    assert pending.retry_after == (T0 if again else None)


def test_rows_that_are_not_failed_never_come_again(files: Path) -> None:
    for outcome in ("present", "dropped"):
        assert find_pending(list_sources(files), known_of(files, outcome), retry=Retry.FAILED).unchanged == 3


def test_a_failed_file_that_changed_is_new(files: Path) -> None:
    known = known_of(files, "failed")
    (files / "a").write_bytes(b"mended")
    pending = find_pending(list_sources(files), known, retry=Retry.FAILED)
    assert ([e.uri for e in pending.items], len(pending.retried)) == ([str(files / "a")], 2)


def test_an_unreadable_file_is_new_once_and_then_known(files: Path) -> None:
    (files / "broken").symlink_to(files / "nowhere")
    listed = [entry for entry in list_sources(files) if entry.uri.endswith("broken")]
    assert [entry.content_hash for entry in find_pending(listed, SCHEMA.empty_table()).items] == [""]
    assert find_pending(listed, known_rows((listed[0], "failed", True, 0))).unchanged == 1


def test_etags_decide_where_both_sides_have_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        planning, "hash_sources", lambda items, **_: [e.model_copy(update={"content_hash": "new"}) for e in items]
    )
    before = item("x", etag="one", modified_at=T0)
    known = known_rows((before, "present", False, 0))
    later = T0 + timedelta(days=1)
    same = before.model_copy(update={"content_hash": "", "modified_at": later})
    other = before.model_copy(update={"content_hash": "", "etag": "two"})
    assert find_pending([same], known).unchanged == 1
    assert len(find_pending([other], known).items) == 1


def test_a_limit_hashes_no_more_than_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(200):
        (tmp_path / f"{number:03}").write_bytes(b"x%d" % number)
    hashed: list[SourceItem] = []
    real = hash_sources
    monkeypatch.setattr(planning, "hash_sources", lambda items, **_: hashed.extend(items) or real(items))
    pending = find_pending(list_sources(tmp_path), SCHEMA.empty_table(), limit=5)
    assert [entry.uri[-3:] for entry in pending.items] == ["000", "001", "002", "003", "004"]
    assert len(hashed) == 64
    assert find_pending(list_sources(tmp_path), SCHEMA.empty_table(), limit=0).items == []


class TestAdoption:
    def test_unchanged_sources_resume(self) -> None:
        sources = [item("a"), item("b")]
        manifest = manifest_of(sources)
        listing = [entry.model_copy(update={"content_hash": ""}) for entry in sources]
        assert adopt([manifest], listing, SCHEMA.empty_table()).resume == [manifest]

    def test_committed_sources_are_finished(self) -> None:
        sources = [item("a"), item("b")]
        manifest = manifest_of(sources)
        known = known_rows(*((entry, "failed", False, 0) for entry in sources))
        assert adopt([manifest], sources, known).finished == [manifest]
        assert adopt([manifest], sources, known.slice(0, 1)).resume == [manifest]

    def test_a_retry_is_finished_only_by_younger_rows(self) -> None:
        manifest = manifest_of([item("a")], retry_after=T0)
        assert adopt([manifest], [item("a")], known_rows((item("a"), "failed", True, 0))).resume == [manifest]
        assert adopt([manifest], [item("a")], known_rows((item("a"), "failed", True, 1))).finished == [manifest]

    def test_changed_or_partly_gone_sources_are_stale_and_absent_ones_foreign(self) -> None:
        manifest = manifest_of([item("a"), item("b")])
        empty = SCHEMA.empty_table()
        assert adopt([manifest], [item("a"), item("b", size=2)], empty).stale == [manifest]
        assert adopt([manifest], [item("a")], empty).stale == [manifest]
        assert adopt([manifest], [item("z")], empty).foreign == [manifest]


sizes = st.lists(st.integers(0, 10**9), max_size=60)


@given(sizes, st.integers(1, 12))
def test_microbatches_hold_everything_once_and_no_more_than_their_size(byte_sizes: list[int], size: int) -> None:
    items = [item(f"{number:03}", size=weight) for number, weight in enumerate(byte_sizes)]
    groups = balance(items, size)
    assert sorted(entry.uri for group in groups for entry in group) == [entry.uri for entry in items]
    assert len(groups) == -(-len(items) // size)
    assert all(1 <= len(group) <= size for group in groups)
    assert all(group == sorted(group, key=lambda entry: entry.uri) for group in groups)
    assert balance(list(reversed(items)), size) == groups


def test_one_huge_file_does_not_make_its_microbatch_the_slowest_by_more_than_itself() -> None:
    items = [item("huge", size=1000), *(item(f"s{number}", size=100) for number in range(11))]
    groups = balance(items, 6)
    weights = sorted(sum(entry.size for entry in group) for group in groups)
    assert weights == [600, 1500]
    even = balance([item(f"{number}", size=number) for number in range(40)], 10)
    weights = [sum(entry.size for entry in group) for group in even]
    assert max(weights) - min(weights) <= 10


def test_a_microbatch_of_no_sources_is_refused() -> None:
    with pytest.raises(UsageError, match="at least one source"):
        plan_microbatches([item("a")], 0, flow="pdf", semantic_fingerprint=PRINT)


def test_microbatch_ids_follow_content() -> None:
    base = manifest_of([item("a"), item("b")])
    assert base.microbatch_id == manifest_of([item("a"), item("b")]).microbatch_id
    assert len(base.microbatch_id) == 32
    others = [
        manifest_of([item("a")]),
        manifest_of([item("b"), item("a")]),
        manifest_of([item("a", "0" * 32), item("b")]),
        manifest_of([item("a"), item("b")], semantic_fingerprint="e" * 64),
        manifest_of([item("a"), item("b")], flow="video"),
        manifest_of([item("a"), item("b")], retry_after=T0),
        manifest_of([item("a", ""), item("b")]),
        manifest_of([item("a", "", size=2), item("b")]),
    ]
    assert len({base.microbatch_id, *(other.microbatch_id for other in others)}) == 9
