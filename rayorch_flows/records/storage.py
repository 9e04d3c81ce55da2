"""Small files beside the record table: manifests and staged rows, on the table's own storage.

Local storage writes a temporary name, syncs and renames, so a file that can be read is whole. Object stores publish an
upload when it completes. Both go through the options that the table itself is opened with.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from deltalake.fs import DeltaStorageHandler

from rayorch_flows.errors import TableError
from rayorch_flows.records.arrow import pa, pafs
from rayorch_flows.redaction import as_cause, redacted
from rayorch_flows.uris import local_path

PRIVATE_FOLDER: Final = "_rayorch_flows"
"""Under the table's root. The leading underscore keeps Delta readers and ``vacuum`` away from it."""
_TEMPORARY: Final = ".tmp-"
_THREADS: Final = 8
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_REMOTE_DEFAULTS: Final = {"max_retries": "5", "retry_timeout": "15s", "connect_timeout": "5s"}
"""So that a store which cannot be reached is an error within seconds."""
_UNUSABLE: Final = re.compile(r"%[0-9A-Fa-f]{2}|[\x00-\x1f\x7f\[\]^|\\]")

Result = TypeVar("Result")


class TableStorage:
    """Files under ``<table>/_rayorch_flows``, by relative ``/``-separated paths. Picklable; opened on first use."""

    def __init__(self, table_uri: str, storage_options: Mapping[str, str] | None = None) -> None:
        self.table_uri = table_location(table_uri)
        self.storage_options = dict(storage_options or {})
        self._remote = threading.local()

    def __repr__(self) -> str:
        return f"TableStorage({self.table_uri!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return TableStorage, (self.table_uri, self.storage_options)

    @property
    def local_root(self) -> Path | None:
        """The table's folder, if it is local."""
        return local_path(self.table_uri)

    def write(self, path: str, data: bytes) -> None:
        """Create or replace a file. Whoever sees it sees all of it."""
        root = self.local_root
        if root is None:
            self._guard(path, lambda: self._upload(path, data))
        else:
            self._guard(path, lambda: _write_local(root / PRIVATE_FOLDER / path, data))

    def read(self, path: str) -> bytes | None:
        """The file's bytes, or None if there is none."""
        root = self.local_root
        if root is None:
            return self._guard(path, lambda: self._download(path))
        try:
            return (root / PRIVATE_FOLDER / path).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._broken(path, error) from as_cause(error, self.storage_options)

    def names(self, folder: str) -> list[str]:
        """Names of the files directly in ``folder``, sorted; none if it does not exist."""
        root = self.local_root
        if root is None:
            return self._guard(folder, lambda: self._list(folder))
        try:
            with os.scandir(root / PRIVATE_FOLDER / folder) as entries:
                found = [entry.name for entry in entries if entry.is_file()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._broken(folder, error) from as_cause(error, self.storage_options)
        return sorted(name for name in found if not name.startswith(_TEMPORARY))

    def read_all(self, paths: Sequence[str]) -> list[bytes | None]:
        """``read`` for each, side by side."""
        return self._each(self.read, paths)

    def write_all(self, files: Mapping[str, bytes]) -> None:
        """``write`` for each, side by side."""
        self._each(lambda path: self.write(path, files[path]), list(files))

    def _each(self, action: Callable[[str], Result], paths: Sequence[str]) -> list[Result]:
        if len(paths) < 2:
            return [action(path) for path in paths]
        with ThreadPoolExecutor(min(_THREADS, len(paths)), thread_name_prefix="table-files") as pool:
            return list(pool.map(action, paths))

    def delete(self, path: str) -> None:
        """Delete a file; nothing happens if it does not exist."""
        root = self.local_root
        if root is None:
            self._guard(path, lambda: self._delete(path))
            return
        with contextlib.suppress(FileNotFoundError):
            (root / PRIVATE_FOLDER / path).unlink()

    def delete_folder(self, folder: str) -> None:
        """Delete a folder and what is in it; nothing happens if it does not exist."""
        root = self.local_root
        if root is not None:
            shutil.rmtree(root / PRIVATE_FOLDER / folder, ignore_errors=True)
            return
        self._each(self.delete, [f"{folder}/{name}" for name in self.names(folder)])

    def _handler(self) -> Any:
        made = getattr(self._remote, "filesystem", None)
        if made is None:
            options = remote_options(self.table_uri, self.storage_options)
            made = pafs.PyFileSystem(_ObjectStore(f"{self.table_uri}/{PRIVATE_FOLDER}", options))
            self._remote.filesystem = made
        return made

    def _upload(self, path: str, data: bytes) -> None:
        with self._handler().open_output_stream(path) as stream:
            stream.write(data)

    def _download(self, path: str) -> bytes | None:
        if self._handler().get_file_info([path])[0].type == pafs.FileType.NotFound:
            return None
        with self._handler().open_input_stream(path) as stream:
            return cast("bytes", stream.read())

    def _list(self, folder: str) -> list[str]:
        infos = self._handler().get_file_info(pafs.FileSelector(folder, allow_not_found=True))
        return sorted(str(info.base_name) for info in infos if info.type == pafs.FileType.File)

    def _delete(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._handler().delete_file(path)

    def _guard(self, path: str, action: Callable[[], Result]) -> Result:
        try:
            return action()
        except (OSError, pa.ArrowException) as error:
            raise self._broken(path, error) from as_cause(error, self.storage_options)

    def _broken(self, path: str, error: BaseException) -> TableError:
        return TableError(
            f"cannot use {PRIVATE_FOLDER}/{path} beside the table: {plain_message(error, self.storage_options)}",
            where=self.table_uri,
            next_step="check that the table's storage is reachable, writable and not full",
        )


def remote_options(uri: str, storage_options: Mapping[str, str]) -> dict[str, str]:
    """deltalake's storage options for this place: ours as defaults, the user's above them."""
    if local_path(uri) is not None:
        return dict(storage_options)
    return {**_REMOTE_DEFAULTS, **storage_options}


def plain_message(error: BaseException, secret: object) -> str:
    """An error's message on one line, without colours and secrets."""
    return redacted(" ".join(_COLOUR.sub("", str(error)).split()), secret)


class _ObjectStore(DeltaStorageHandler):
    """deltalake's file system, whose output stream takes bytes only where pyarrow hands it buffers."""

    def open_output_stream(self, path: str, metadata: dict[str, str] | None = None) -> Any:
        return pa.PythonFile(_BytesWriter(self._handler.open_output_stream(path, metadata)), mode="w")


class _BytesWriter:
    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self.closed = False

    def write(self, data: Any) -> int:
        whole = bytes(data)
        self._raw.write(whole)
        return len(whole)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._raw.close()


def table_location(uri: str) -> str:
    """The one spelling of a table's place: an absolute path, or the remote URI without a trailing slash."""
    if uri.startswith("memory://"):
        raise TableError(
            "a table in memory:// is gone with the process that wrote it",
            where=uri,
            next_step="use a local folder or an object store (s3://, gs://, az://)",
        )
    path = local_path(uri)
    if path is None:
        return uri.rstrip("/")
    place = os.path.abspath(path.expanduser())
    if _UNUSABLE.search(place):
        raise TableError(
            "the Delta library cannot keep a table in a folder with [ ] ^ | \\ %XX or control characters in its path",
            where=repr(place),
            next_step="choose another folder",
        )
    return place


def _write_local(target: Path, data: bytes) -> None:
    try:
        _write_once(target, data)
    except FileNotFoundError:  # the folder was cleaned up in between
        _write_once(target, data)


def _write_once(target: Path, data: bytes) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.parent / f"{_TEMPORARY}{uuid.uuid4().hex}"
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
