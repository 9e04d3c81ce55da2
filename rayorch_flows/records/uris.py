"""What a source URI is: an absolute path for a local file, ``scheme://...`` for everything else.

A local name that is not valid UTF-8 cannot be stored as text; it becomes ``file://`` with percent escapes. A plain
path is never escaped and never parsed, so blanks, ``#``, ``%``, ``::`` and newlines in names mean themselves.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Final, cast
from urllib.parse import quote_from_bytes, unquote_to_bytes

import fsspec

FILE_SCHEME: Final = "file://"
_REMOTE: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def uri_of_path(path: str | os.PathLike[str]) -> str:
    """The URI by which a local file is known: its absolute path as it was reached, symbolic links kept."""
    absolute = os.path.abspath(os.fspath(path))
    try:
        absolute.encode()
    except UnicodeEncodeError:
        return FILE_SCHEME + quote_from_bytes(os.fsencode(absolute))
    return absolute


def local_path(uri: str) -> Path | None:
    """The local file that a URI names, or None if it is not local."""
    if uri.startswith(FILE_SCHEME):
        return Path(os.fsdecode(unquote_to_bytes(uri.removeprefix(FILE_SCHEME))))
    return None if _REMOTE.match(uri) else Path(uri)


def remote_filesystem(uri: str, storage_options: Mapping[str, Any] | None = None) -> tuple[Any, str]:
    """The fsspec file system of a remote URI and the path in it, without fsspec's ``::`` chaining."""
    protocol = uri.split("://", 1)[0]
    kind: Any = fsspec.get_filesystem_class(protocol)
    options = {**cast("dict[str, Any]", kind._get_kwargs_from_urls(uri)), **(storage_options or {})}
    return kind(**options), str(kind._strip_protocol(uri))


def open_uri(uri: str, storage_options: Mapping[str, Any] | None = None) -> IO[bytes]:
    """Open a source for reading bytes."""
    path = local_path(uri)
    if path is not None:
        return path.open("rb")
    filesystem, remote = remote_filesystem(uri, storage_options)
    return cast("IO[bytes]", filesystem.open(remote, "rb"))
