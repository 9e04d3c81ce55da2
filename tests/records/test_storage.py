from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from rayorch_flows.errors import TableError
from rayorch_flows.records import storage as storage_module
from rayorch_flows.records.storage import TableStorage, remote_options, table_location


def test_files_are_written_whole_listed_read_and_deleted(tmp_path: Path) -> None:
    storage = pickle.loads(pickle.dumps(TableStorage(str(tmp_path / "t"))))
    storage.write("a/b/two", b"2")
    storage.write("a/b/one", b"1")
    storage.write("a/b/one", b"new")
    assert storage.names("a/b") == ["one", "two"]
    assert storage.read("a/b/one") == b"new"
    assert (tmp_path / "t/_rayorch_flows/a/b/two").read_bytes() == b"2"
    storage.delete("a/b/one")
    storage.delete("a/b/one")
    assert storage.read("a/b/one") is None
    storage.delete_folder("a/b")
    storage.delete_folder("a/b")
    assert storage.names("a/b") == []


def test_a_write_that_dies_leaves_nothing_that_can_be_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = TableStorage(str(tmp_path))
    storage.write("a/x", b"old")

    def die(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(storage_module.os, "replace", die)
    with pytest.raises(TableError, match="No space left"):
        storage.write("a/x", b"new")
    assert storage.names("a") == ["x"]
    assert storage.read("a/x") == b"old"
    assert len(os.listdir(tmp_path / "_rayorch_flows/a")) == 1


def test_a_temporary_file_of_a_killed_writer_is_not_listed(tmp_path: Path) -> None:
    storage = TableStorage(str(tmp_path))
    storage.write("a/x", b"1")
    (tmp_path / "_rayorch_flows/a/.tmp-123").write_bytes(b"half")
    assert storage.names("a") == ["x"]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(TableError) as caught:
        TableStorage(str(tmp_path / "file")).write("a/x", b"")
    assert str(tmp_path / "file") in str(caught.value)


def test_object_stores_go_through_the_table_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way to a remote store, walked on a local folder."""
    monkeypatch.setattr(TableStorage, "local_root", None)
    (tmp_path / "_rayorch_flows").mkdir()
    storage = TableStorage(tmp_path.as_uri())
    assert storage.names("a/b") == []
    storage.write("a/b/x é#", b"1")
    storage.write("a/b/x é#", b"12")
    storage.write("a/b/y", b"3")
    assert storage.names("a/b") == ["x é#", "y"]
    assert storage.read("a/b/x é#") == b"12"
    assert storage.read("a/b/none") is None
    storage.delete("a/b/none")
    storage.delete_folder("a/b")
    assert storage.names("a/b") == []


def test_secrets_do_not_show(tmp_path: Path) -> None:
    assert "hunter2" not in repr(TableStorage("s3://bucket/t", {"AWS_SECRET_ACCESS_KEY": "hunter2"}))


def test_locations_have_one_spelling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert table_location("t/") == str(tmp_path / "t")
    assert table_location((tmp_path / "a b").as_uri()) == str(tmp_path / "a b")
    assert table_location("s3://bucket/t/") == "s3://bucket/t"


@pytest.mark.parametrize("place", ["memory://t", "/tmp/a%20b", "/tmp/a\nb", "/tmp/a[1]", "/tmp/a\\b"])
def test_places_where_no_table_can_be_are_refused(place: str) -> None:
    with pytest.raises(TableError):
        table_location(place)


def test_remote_stores_give_up_soon_unless_told_otherwise() -> None:
    assert remote_options("/tmp/t", {}) == {}
    assert remote_options("s3://b/t", {"max_retries": "9"}) == {
        "max_retries": "9",
        "retry_timeout": "15s",
        "connect_timeout": "5s",
    }
