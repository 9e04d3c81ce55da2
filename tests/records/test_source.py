from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import fsspec
import pytest

from rayorch_flows.errors import SourceError
from rayorch_flows.records import source as source_module
from rayorch_flows.records.source import hash_sources, list_sources, settled, wanted_name
from rayorch_flows.uris import local_path, open_uri, uri_of_path

ODD_NAMES = [
    "plain.pdf",
    "with blank.pdf",
    "hash#tag.pdf",
    "percent%20.pdf",
    "question?.pdf",
    "a::b.pdf",
    "ünïcode 文書.pdf",
    "new\nline.pdf",
    "quote'\".pdf",
    "[brackets].pdf",
]


def make(folder: Path, *names: str) -> Path:
    for name in names:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(name.encode())
    return folder


def names(items: list[source_module.SourceItem], top: Path) -> list[str]:
    return [os.path.relpath(entry.uri, top) for entry in items]


def test_a_folder_is_listed_recursively_in_order_of_uri(tmp_path: Path) -> None:
    make(tmp_path, "b.pdf", "a/z.pdf", "a/b/c.PDF", "a/notes.txt")
    assert names(list_sources(tmp_path, ("*.pdf",)), tmp_path) == ["a/b/c.PDF", "a/z.pdf", "b.pdf"]


def test_hidden_partial_and_own_files_are_left_out(tmp_path: Path) -> None:
    make(
        tmp_path,
        "ok.pdf",
        ".hidden.pdf",
        ".git/x.pdf",
        "half.pdf.part",
        "half.pdf.CRDOWNLOAD",
        "~$lock.pdf",
        "backup.pdf~",
        "t/_delta_log/0.json",
        "t/part-0.parquet",
        "t/below/part-1.parquet",
        "u/_rayorch_flows/staging/x",
        "_scans/kept.pdf",
    )
    assert names(list_sources(tmp_path), tmp_path) == ["_scans/kept.pdf", "ok.pdf"]


def test_a_single_file_is_taken_whatever_its_name(tmp_path: Path) -> None:
    make(tmp_path, ".odd.bin")
    assert names(list_sources(tmp_path / ".odd.bin", ("*.pdf",)), tmp_path) == [".odd.bin"]


def test_a_glob_selects_by_itself_and_folders_that_it_matches_are_searched(tmp_path: Path) -> None:
    make(tmp_path, "2024/a.pdf", "2024/a.txt", "2025/b.pdf", "2024-x.bin", "other/c.pdf")
    assert names(list_sources(f"{tmp_path}/2024*", ("*.pdf",)), tmp_path) == ["2024-x.bin", "2024/a.pdf"]
    assert names(list_sources(f"{tmp_path}/**/*.pdf"), tmp_path) == ["2024/a.pdf", "2025/b.pdf", "other/c.pdf"]


def test_a_folder_whose_name_looks_like_a_glob_is_itself(tmp_path: Path) -> None:
    make(tmp_path, "a[1]/x.pdf", "a1/y.pdf")
    assert names(list_sources(tmp_path / "a[1]"), tmp_path) == ["a[1]/x.pdf"]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_odd_names_can_be_opened_by_their_uri(tmp_path: Path, name: str) -> None:
    make(tmp_path, name)
    [found] = list_sources(tmp_path)
    assert found.uri == str(tmp_path / name)
    with open_uri(found.uri) as file:
        assert file.read() == name.encode()


def test_a_name_that_is_not_utf8_gets_an_escaped_uri(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/bad\xff%41.pdf"))
    path.write_bytes(b"x")
    [found] = hash_sources(list_sources(tmp_path))
    assert found.uri.startswith("file://")
    assert "%FF%2541" in found.uri
    assert local_path(found.uri) == path
    assert found.content_hash
    assert list_sources(found.uri)[0].uri == found.uri


def test_file_uris_and_paths_name_the_same_sources(tmp_path: Path) -> None:
    folder = make(tmp_path / "a b", "x.pdf")
    assert list_sources(folder.as_uri()) == list_sources(folder)


def test_overlapping_links_yield_each_folder_once(tmp_path: Path) -> None:
    make(tmp_path, "a/x.pdf")
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    (tmp_path / "file-link.pdf").symlink_to(tmp_path / "a" / "x.pdf")
    assert names(list_sources(tmp_path), tmp_path) == ["a/x.pdf", "file-link.pdf"]


def test_a_broken_link_is_listed_and_its_hash_stays_empty(tmp_path: Path) -> None:
    make(tmp_path, "good.pdf")
    (tmp_path / "broken.pdf").symlink_to(tmp_path / "nowhere")
    broken, good = hash_sources(list_sources(tmp_path))
    assert (broken.size, broken.modified_at, broken.content_hash) == (0, None, "")
    assert good.content_hash


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link.pdf").symlink_to(tmp_path / "pipe")
    assert [entry.content_hash for entry in hash_sources(list_sources(tmp_path))] == [""]
    assert [entry.content_hash for entry in hash_sources(list_sources(tmp_path / "pipe"))] == [""]


def test_a_missing_source_and_an_empty_glob_say_so(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no such file or folder"):
        list_sources(tmp_path / "nope")
    with pytest.raises(SourceError, match="no file matches"):
        list_sources(f"{tmp_path}/*.pdf")
    with pytest.raises(SourceError, match="source is empty"):
        list_sources("")


def test_an_empty_folder_is_no_error(tmp_path: Path) -> None:
    assert list_sources(tmp_path) == []


def test_an_unreadable_subfolder_is_an_error_or_a_noted_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, "open/a.pdf", "shut/b.pdf")
    real = os.scandir

    def scandir(path: str) -> object:
        if path.endswith("shut"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(source_module.os, "scandir", scandir)
    with pytest.raises(SourceError, match="shut: Permission denied"):
        list_sources(tmp_path)
    problems: list[str] = []
    assert names(list_sources(tmp_path, problems=problems), tmp_path) == ["open/a.pdf"]
    assert problems == [f"{tmp_path}/shut: Permission denied"]
    with pytest.raises(SourceError, match="cannot read the folder"):
        list_sources(tmp_path / "shut", problems=[])


def test_size_and_time_are_those_of_the_file(tmp_path: Path) -> None:
    make(tmp_path, "x.pdf")
    os.utime(tmp_path / "x.pdf", ns=(0, 1_700_000_000_123_456_789))
    [found] = list_sources(tmp_path)
    assert found.size == 5
    assert found.modified_at == datetime(2023, 11, 14, 22, 13, 20, 123456, UTC)


def test_hashing_keeps_order_and_tells_contents_apart(tmp_path: Path) -> None:
    make(tmp_path, *(f"{number:02}.pdf" for number in range(40)))
    (tmp_path / "copy.pdf").write_bytes(b"00.pdf")
    items = hash_sources(list_sources(tmp_path), workers=8)
    assert items == sorted(items, key=lambda entry: entry.uri)
    hashes = {os.path.basename(entry.uri): entry.content_hash for entry in items}
    assert hashes["copy.pdf"] == hashes["00.pdf"]
    assert len(set(hashes.values())) == 40


def test_a_hash_goes_with_the_size_and_time_at_which_it_was_read(tmp_path: Path) -> None:
    make(tmp_path, "x.pdf")
    listed = list_sources(tmp_path)
    (tmp_path / "x.pdf").write_bytes(b"something longer")
    [hashed] = hash_sources(listed)
    assert hashed.size == 16
    assert hashed.modified_at == list_sources(tmp_path)[0].modified_at


def test_patterns_see_the_name_or_the_path() -> None:
    assert wanted_name("a/b.PDF", ("*.pdf",))
    assert wanted_name("a/b.pdf", ("a/*.pdf",))
    assert not wanted_name("c/b.pdf", ("a/*.pdf",))


def test_settled_waits_for_quiet() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    fresh = source_module.SourceItem(uri="/a", size=1, modified_at=now - timedelta(seconds=5))
    old = source_module.SourceItem(uri="/b", size=1, modified_at=now - timedelta(seconds=50))
    unknown = source_module.SourceItem(uri="/c", size=1)
    assert settled([fresh, old, unknown], 10, now=now) == [old, unknown]


class TestRemote:
    @pytest.fixture
    def bucket(self) -> str:
        filesystem = fsspec.filesystem("memory")
        filesystem.store.clear()
        filesystem.pseudo_dirs[:] = [""]
        return "memory://bucket"

    @pytest.mark.parametrize("name", ODD_NAMES)
    def test_odd_names_can_be_opened_by_their_uri(self, bucket: str, name: str) -> None:
        filesystem = fsspec.filesystem("memory")
        with filesystem.open(f"/bucket/{name}", "wb") as file:
            file.write(b"abc")
        [found] = hash_sources(list_sources(bucket))
        assert found.uri == f"memory:///bucket/{name}"
        assert found.content_hash
        assert found.modified_at is not None
        assert list_sources(found.uri)[0].uri == found.uri

    def test_folders_globs_and_patterns(self, bucket: str) -> None:
        filesystem = fsspec.filesystem("memory")
        for name in ("a/x.pdf", "a/.h.pdf", "a/x.txt", ".git/y.pdf", "b/z.pdf", "t/_delta_log/0", "t/p/x.pdf"):
            filesystem.pipe_file(f"/bucket/{name}", b"x")
        assert [i.uri for i in list_sources(bucket, ("*.pdf",))] == [
            "memory:///bucket/a/x.pdf",
            "memory:///bucket/b/z.pdf",
        ]
        assert [i.uri for i in list_sources(f"{bucket}/a/*.txt", ("*.pdf",))] == ["memory:///bucket/a/x.txt"]

    def test_new_files_are_seen_by_the_next_listing(self, bucket: str) -> None:
        filesystem = fsspec.filesystem("memory")
        filesystem.pipe_file("/bucket/a.pdf", b"x")
        assert len(list_sources(bucket)) == 1
        filesystem.pipe_file("/bucket/b.pdf", b"x")
        assert len(list_sources(bucket)) == 2

    def test_what_is_missing_or_unknown_says_so(self, bucket: str) -> None:
        with pytest.raises(SourceError, match="nothing at this URI"):
            list_sources(f"{bucket}/nope")
        with pytest.raises(SourceError, match="nowhere:// sources"):
            list_sources("nowhere://bucket")

    def test_an_etag_is_kept_without_quotes(self, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
        filesystem = fsspec.filesystem("memory")
        filesystem.pipe_file("/bucket/a.pdf", b"x")
        real = type(filesystem).info

        def info(self: object, path: str, **options: object) -> dict[str, object]:
            return {**real(self, path, **options), "ETag": '"abc"', "LastModified": "2026-01-01T00:00:00+02:00"}

        monkeypatch.setattr(type(filesystem), "info", info)
        [found] = list_sources(f"{bucket}/a.pdf")
        assert found.etag == "abc"
        assert found.modified_at == datetime(2025, 12, 31, 22, tzinfo=UTC)


def test_uri_of_path_is_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert uri_of_path("x/../y.pdf") == str(tmp_path / "y.pdf")
