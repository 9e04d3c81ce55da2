"""What a source URI is: an absolute path for a local file, ``scheme://...`` for everything else.

A local name that is not valid UTF-8 cannot be stored as text; it becomes ``file://`` with percent escapes. A plain
path is never escaped and never parsed, so blanks, ``#``, ``%``, ``::`` and newlines in names mean themselves.

A ``SourceUri`` is a URI that brings the storage options that open it. It is how they reach the Functions: with the
value itself, from worker to worker, so that they stand in no program, parameter, manifest, log or record.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final, cast
from urllib.parse import quote_from_bytes, unquote_to_bytes

import fsspec

FILE_SCHEME: Final = "file://"
_REMOTE: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


class SourceUri(str):
    """A source URI with its storage options. Compared, shown, hashed and stored, it is its text and nothing else."""

    __slots__ = ("storage_options",)
    storage_options: Mapping[str, Any]

    def __new__(cls, uri: str, storage_options: Mapping[str, Any]) -> SourceUri:
        made = super().__new__(cls, uri)
        made.storage_options = storage_options
        return made

    def __reduce__(self) -> tuple[object, ...]:
        return SourceUri, (str(self), self.storage_options)


def with_options(uris: Sequence[str], storage_options: Mapping[str, Any]) -> list[str]:
    """The URIs as Functions get them: remote ones bring the options, if there are any."""
    if not storage_options:
        return list(uris)
    return [SourceUri(uri, storage_options) if local_path(uri) is None else uri for uri in uris]


def options_of(uri: str) -> Mapping[str, Any]:
    """The storage options that a URI brings; a plain one brings none."""
    return uri.storage_options if isinstance(uri, SourceUri) else {}


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
    """The fsspec file system of a remote URI and the path in it, without fsspec's ``::`` chaining.

    The options are those given, or else those that the URI brings.
    """
    protocol = uri.split("://", 1)[0]
    kind: Any = fsspec.get_filesystem_class(protocol)
    options = {**cast("dict[str, Any]", kind._get_kwargs_from_urls(uri)), **(storage_options or options_of(uri))}
    return kind(**options), str(kind._strip_protocol(uri))


def open_uri(uri: str, storage_options: Mapping[str, Any] | None = None) -> IO[bytes]:
    """Open a source for reading bytes."""
    path = local_path(uri)
    if path is not None:
        return path.open("rb")
    filesystem, remote = remote_filesystem(uri, storage_options)
    return cast("IO[bytes]", filesystem.open(remote, "rb"))
