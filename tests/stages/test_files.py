"""Files are opened wherever they lie, with what their URI brings along."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from rayorch_flows.stages import files
from rayorch_flows.uris import SourceUri, options_of, uri_of_path, with_options

SECRET = "hunter2-very-secret"


class Vault(MemoryFileSystem):
    """A store that opens with the right key only, and quotes the wrong one in its errors."""

    protocol = "vault"
    cachable = False

    def __init__(self, key: str = "", **options: object) -> None:
        super().__init__(**options)
        if key != SECRET:
            raise PermissionError(f"key {key!r} does not fit")

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.removeprefix("vault:/"))


fsspec.register_implementation("vault", Vault, clobber=True)


@pytest.fixture
def stored() -> str:
    with Vault(SECRET).open("/box/a.bin", "wb") as file:
        file.write(b"contents")
    return "vault://box/a.bin"


def test_a_uri_opens_with_the_options_that_it_brings(stored: str) -> None:
    (uri,) = with_options([stored], {"key": SECRET})
    assert files.stat(uri).nbytes == 8
    assert files.read_head(uri, 3) == b"con"
    assert files.read_all(pickle.loads(pickle.dumps(uri)), 100) == b"contents"


def test_without_them_it_stays_closed(stored: str) -> None:
    with pytest.raises(files.SourceFailure, match="PermissionError"):
        files.read_all(stored, 100)


def test_a_failure_does_not_say_what_it_was_given(stored: str) -> None:
    (uri,) = with_options([stored], {"key": "wrong-but-secret"})
    with pytest.raises(files.SourceFailure) as caught:
        files.read_all(uri, 100)
    assert caught.value.message == "cannot read vault://box/a.bin: PermissionError: key '***' does not fit"


def test_such_a_uri_is_its_text() -> None:
    uri = SourceUri("vault://box/a", {"key": SECRET})
    assert uri == "vault://box/a"
    assert {uri: 1} == {"vault://box/a": 1}
    assert SECRET not in f"{uri} {uri!r} {uri + '#page=1'!r}"
    assert type(str(uri)) is str


def test_only_remote_uris_bring_options() -> None:
    uris = with_options(["/data/a.pdf", "vault://box/a"], {"key": SECRET})
    assert [dict(options_of(uri)) for uri in uris] == [{}, {"key": SECRET}]
    assert [type(uri) for uri in with_options(["vault://box/a"], {})] == [str]


@pytest.mark.parametrize("name", ["a::b.pdf", "a#b?c.pdf", "50% off.pdf", "file:x.pdf", "~a.pdf", "new\nline.pdf"])
def test_a_local_name_means_itself(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"x")
    uri = uri_of_path(tmp_path / name)
    assert files.stat(uri).path == str(tmp_path / name)
    assert files.read_all(uri, 10) == b"x"


def test_a_local_name_that_is_no_text(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/\xff.pdf"
    with open(path, "wb") as file:
        file.write(b"x")
    assert files.read_all(uri_of_path(os.fsdecode(path)), 10) == b"x"
