"""Reading source files wherever they lie, with failures told apart from the data's own faults.

A URI out of a source column may bring storage options (``rayorch_flows.uris.SourceUri``): hand it on as it is, in the
values that Functions pass to each other too, and every function here opens it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any, cast

from fsspec.implementations.local import LocalFileSystem  # pyright: ignore[reportMissingTypeStubs]

from rayorch_flows.program.outcomes import CauseKind
from rayorch_flows.redaction import redacted
from rayorch_flows.uris import local_path, options_of, remote_filesystem


class SourceFailure(Exception):
    """A source item cannot be used; carries what its RecordFailure will say."""

    def __init__(self, kind: CauseKind, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.retryable = retryable


@dataclass(frozen=True, slots=True)
class FileStat:
    """A file as it is now. ``version`` changes when the file does; ``path`` is set for a local file."""

    uri: str
    nbytes: int
    version: str
    path: str | None


def stat(uri: str) -> FileStat:
    """Look at a file without reading it. Raises SourceFailure(unreadable)."""
    try:
        fs, inner = _locate(uri)
        info = cast("dict[str, Any]", fs.info(inner))
    except Exception as error:  # every file system has its own exceptions
        raise _unreadable(uri, error) from error
    if info.get("type", "file") != "file":
        raise SourceFailure(CauseKind.UNREADABLE, f"{uri} is not a regular file", retryable=True)
    local = isinstance(fs, LocalFileSystem)
    nbytes = info.get("size")
    marks = [str(info[key]) for key in ("mtime", "ETag", "etag", "LastModified", "md5") if info.get(key)]
    return FileStat(
        uri=uri,
        nbytes=-1 if nbytes is None else int(nbytes),
        version=":".join([str(nbytes), *marks]),
        path=inner if local else None,
    )


def read_head(uri: str, count: int) -> bytes:
    """The first ``count`` bytes of a file."""
    try:
        fs, inner = _locate(uri)
        with fs.open(inner, "rb") as file:
            return cast("IO[bytes]", file).read(count)
    except Exception as error:
        raise _unreadable(uri, error) from error


def read_all(uri: str, max_bytes: int) -> bytes:
    """The whole file, at most ``max_bytes`` of it: one that turns out to be longer is a SourceFailure(too_large)."""
    try:
        fs, inner = _locate(uri)
        with fs.open(inner, "rb") as file:
            data = cast("IO[bytes]", file).read(max_bytes + 1)
    except Exception as error:
        raise _unreadable(uri, error) from error
    if len(data) > max_bytes:
        raise SourceFailure(CauseKind.TOO_LARGE, f"more than {max_bytes:,} bytes")
    return data


def _locate(uri: str) -> tuple[Any, str]:
    path = local_path(uri)
    return remote_filesystem(uri) if path is None else (LocalFileSystem(), os.path.abspath(path))


def _unreadable(uri: str, error: Exception) -> SourceFailure:
    text = type(error).__name__
    with suppress(Exception):
        text = redacted(f"{text}: {error}", options_of(uri))
    return SourceFailure(CauseKind.UNREADABLE, f"cannot read {uri}: {text}", retryable=True)
