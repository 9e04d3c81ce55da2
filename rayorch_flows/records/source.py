"""Discovery: which source items there are, and what their bytes are.

A source is a folder (searched recursively), a glob, a single file, or the same as a URI that fsspec understands.
Patterns select by name inside folders; what a glob or a single name points at is taken as it is.

Left out inside folders: names that start with a dot, files that look half-written (``PARTIAL_SUFFIXES``, office
locks ``~$``, editor backups ``~``), and Delta tables. Broken links and files that cannot be looked at
are listed: they become failed rows, not gaps.
"""

from __future__ import annotations

import fnmatch
import glob
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, Any, Final, cast

from pydantic import BaseModel, ConfigDict, Field

from rayorch_flows.errors import SourceError
from rayorch_flows.records.storage import PRIVATE_FOLDER
from rayorch_flows.redaction import as_cause, redacted
from rayorch_flows.uris import local_path, open_uri, remote_filesystem, uri_of_path

PARTIAL_SUFFIXES: Final = (
    ".part", ".partial", ".crdownload", ".download", ".filepart", ".tmp", ".temp", ".swp", ".lock", "~",
)  # fmt: skip
_TABLE_FOLDERS: Final = frozenset({"_delta_log", PRIVATE_FOLDER})
_CHUNK: Final = 1 << 20
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class SourceItem(BaseModel):
    """One source item as listed. ``content_hash`` is empty until hashed, and stays so if it cannot be read."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    uri: str = Field(description="Absolute path of a local file, else scheme://...")
    size: int = Field(description="Bytes; 0 if the file cannot be looked at")
    modified_at: datetime | None = Field(default=None, description="Time of last change, UTC, in microseconds")
    etag: str = Field(default="", description="The object store's tag of this content, if it has one")
    content_hash: str = Field(default="", description="BLAKE2b, 128 bits, of the bytes")


def list_sources(
    source: str | os.PathLike[str],
    patterns: Sequence[str] = ("*",),
    *,
    storage_options: Mapping[str, Any] | None = None,
    problems: list[str] | None = None,
) -> list[SourceItem]:
    """List a source, sorted by URI, without hashes.

    A subfolder that cannot be read raises SourceError, or is noted in ``problems`` if that is given.
    """
    text = os.fspath(source)
    if not text:
        raise SourceError("the source is empty", next_step="give a folder, a glob or a URI")
    notes: list[str] = []
    local = local_path(text)
    if local is None:
        found = _remote_items(text, patterns, storage_options)
    else:
        found = _local_items(local.expanduser(), text, patterns, notes)
    items = {item.uri: item for item in found}
    if notes and problems is None:
        raise SourceError(
            f"{len(notes)} folder(s) cannot be read, the first: {notes[0]}",
            where=text,
            next_step="mend their permissions, or leave them out by naming the others with a glob",
        )
    if problems is not None:
        problems.extend(notes)
    return [items[uri] for uri in sorted(items)]


def hash_sources(
    items: Sequence[SourceItem],
    *,
    workers: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> list[SourceItem]:
    """Hash every item's bytes in threads, in order. What cannot be read keeps an empty hash.

    Local items take the size and time seen when they were opened, so a row describes the bytes that were hashed.
    """
    if not items:
        return []
    threads = workers or min(16, 4 * (os.cpu_count() or 1), len(items))
    with ThreadPoolExecutor(threads, thread_name_prefix="hash") as pool:
        return list(pool.map(lambda item: _hashed(item, storage_options), items))


def settled(items: Iterable[SourceItem], quiet_s: float, *, now: datetime | None = None) -> list[SourceItem]:
    """The items that have not changed for ``quiet_s`` seconds; an unknown time counts as settled."""
    limit = (now or datetime.now(UTC)) - timedelta(seconds=quiet_s)
    return [item for item in items if item.modified_at is None or item.modified_at <= limit]


def wanted_name(relative: str, patterns: Sequence[str]) -> bool:
    """Whether a file inside a folder counts, by its path in it. Patterns ignore case; one with ``/`` sees the path."""
    name = relative.rsplit("/", 1)[-1]
    lowered = name.lower()
    if name.startswith((".", "~$")) or lowered.endswith(PARTIAL_SUFFIXES):
        return False
    return any(
        fnmatch.fnmatchcase(relative.lower() if "/" in pattern else lowered, pattern.lower()) for pattern in patterns
    )


def _skipped_folder(name: str) -> bool:
    return name.startswith(".") or name in _TABLE_FOLDERS


def _local_items(path: Path, text: str, patterns: Sequence[str], notes: list[str]) -> Iterator[SourceItem]:
    if os.path.lexists(path):
        starts = [os.fspath(path)]
    elif glob.has_magic(os.fspath(path)):
        starts = sorted(glob.glob(os.fspath(path), recursive=True, include_hidden=False))
        if not starts:
            raise SourceError("no file matches this glob", where=text, next_step="check it with ls")
    else:
        raise SourceError("there is no such file or folder", where=text, next_step="check the path")
    only = len(starts) == 1
    for start in starts:
        if not os.path.isdir(start):
            yield _local_item(start, os.stat)
            continue
        before = len(notes)
        yield from _walk(start, patterns, notes)
        if only and len(notes) > before and notes[before].startswith(f"{start}: "):
            raise SourceError(f"cannot read the folder: {notes[before]}", where=text, next_step="check its rights")


def _walk(top: str, patterns: Sequence[str], notes: list[str]) -> Iterator[SourceItem]:
    """Depth first, links followed, no folder entered twice."""
    seen: set[tuple[int, int]] = set()
    stack = [(top, "")]
    while stack:
        folder, prefix = stack.pop()
        try:
            status = os.stat(folder)
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            with os.scandir(folder) as entries:
                found = sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            notes.append(f"{folder}: {error.strerror or error}")
            continue
        if prefix and any(entry.name in _TABLE_FOLDERS for entry in found):
            continue
        below: list[tuple[str, str]] = []
        for entry in found:
            if entry.is_dir():
                if not _skipped_folder(entry.name):
                    below.append((entry.path, f"{prefix}{entry.name}/"))
            elif wanted_name(prefix + entry.name, patterns) and (entry.is_file() or entry.is_symlink()):
                yield _local_item(entry.path, lambda _path, entry=entry: entry.stat())
        stack.extend(reversed(below))


def _local_item(path: str, stat: Any) -> SourceItem:
    uri = uri_of_path(path)
    try:
        status = cast("os.stat_result", stat(path))
    except OSError:
        return SourceItem.model_construct(uri=uri, size=0, modified_at=None, etag="", content_hash="")
    return SourceItem.model_construct(
        uri=uri, size=status.st_size, modified_at=_local_time(status), etag="", content_hash=""
    )


def _local_time(status: os.stat_result) -> datetime:
    return _EPOCH + timedelta(microseconds=status.st_mtime_ns // 1000)


def _remote_items(uri: str, patterns: Sequence[str], storage_options: Mapping[str, Any] | None) -> Iterator[SourceItem]:
    try:
        filesystem, path = remote_filesystem(uri, storage_options)
        filesystem.invalidate_cache()
        infos = _remote_infos(filesystem, path, patterns)
    except FileNotFoundError as error:
        raise SourceError("there is nothing at this URI", where=uri, next_step="check the URI") from error
    except (ImportError, ValueError) as error:
        protocol = uri.split("://", 1)[0]
        raise SourceError(
            f"cannot open {protocol}:// sources: {redacted(str(error), storage_options)}",
            where=uri,
            next_step=f"install the fsspec package for {protocol}, or check the URI",
        ) from as_cause(error, storage_options)
    except SourceError as error:
        raise SourceError(error.message, where=uri, next_step=error.next_step) from error
    except Exception as error:  # every store raises its own
        raise SourceError(
            f"the source cannot be listed: {type(error).__name__}: {redacted(str(error), storage_options)}",
            where=uri,
            next_step="check the URI, the credentials and the network",
        ) from as_cause(error, storage_options)
    for name, info in infos:
        yield SourceItem.model_construct(
            uri=str(filesystem.unstrip_protocol(name)),
            size=int(info.get("size") or 0),
            modified_at=_remote_time(info),
            etag=_remote_tag(info),
            content_hash="",
        )


def _remote_infos(filesystem: Any, path: str, patterns: Sequence[str]) -> list[tuple[str, Mapping[str, Any]]]:
    starts: dict[str, Any]
    if glob.has_magic(path) and not filesystem.exists(path):
        starts = filesystem.glob(path, detail=True)
        if not starts:
            raise SourceError("no object matches this glob", next_step="check the glob")
    else:
        starts = {path: filesystem.info(path)}
    found: list[tuple[str, Mapping[str, Any]]] = []
    for start, info in starts.items():
        if info.get("type") != "directory":
            found.append((start, info))
            continue
        base = start.rstrip("/") + "/"
        below = {str(name).removeprefix(base): entry for name, entry in filesystem.find(start, detail=True).items()}
        tables = _tables_in(below)
        for relative, entry in below.items():
            folders = relative.split("/")[:-1]
            if (
                not any(map(_skipped_folder, folders))
                and not any("/".join(folders[:depth]) in tables for depth in range(1, len(folders) + 1))
                and wanted_name(relative, patterns)
            ):
                found.append((base + relative, entry))
    return found


def _tables_in(names: Iterable[str]) -> set[str]:
    """Folders, other than the top one, that hold a Delta table's log."""
    split = (name.split("/") for name in names)
    return {
        "/".join(parts[:depth])
        for parts in split
        for depth in range(1, len(parts) - 1)
        if parts[depth] in _TABLE_FOLDERS
    }


def _remote_time(info: Mapping[str, Any]) -> datetime | None:
    for key in ("LastModified", "last_modified", "mtime", "modified", "updated", "created"):
        value = info.get(key)
        if isinstance(value, str):
            try:
                value = datetime.fromisoformat(value)
            except ValueError:
                continue
        if isinstance(value, datetime):
            return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return _EPOCH + timedelta(microseconds=int(value * 1_000_000))
    return None


def _remote_tag(info: Mapping[str, Any]) -> str:
    for key in ("ETag", "etag", "e_tag", "md5Hash", "content_md5"):
        value = info.get(key)
        if value:
            return str(value).strip('"')
    return ""


def _hashed(item: SourceItem, storage_options: Mapping[str, Any] | None) -> SourceItem:
    try:
        path = local_path(item.uri)
        if path is not None and not path.is_file():  # opening a pipe would wait for ever
            return item
        with open_uri(item.uri, storage_options) as file:
            update: dict[str, Any] = {}
            if path is not None:
                status = os.fstat(file.fileno())
                update = {"size": status.st_size, "modified_at": _local_time(status)}
            update["content_hash"] = _digest(file)
    except Exception:  # a file that cannot be read becomes a failed row, not a failed run
        return item
    return item.model_copy(update=update)


def _digest(file: IO[bytes]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
    return digest.hexdigest()
