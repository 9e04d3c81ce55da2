"""How payload rows become bytes, and back.

A block is a run of rows in one of three encodings:

*whole*  ``bytes``: the pickled list of rows. Small plain values travel so, inside requests and replies.
*apart*  ``bytes``: a pickled tuple of the rows' pickles. Small values of classes travel so: each is loaded only where
         it is wanted, so that one which cannot be loaded takes no other row along.
*rows*   small pickles one after the other, where each begins, and large rows with their out-of-band buffers. So large
         blocks lie in the object store: a consumer maps them and unpickles only the rows that it was given, and
         opening one costs the same whatever the number of its small rows.
"""

from __future__ import annotations

import io
import pickle
from array import array
from collections.abc import Callable, Sequence
from typing import Any, Final

import cloudpickle

from rayorch_flows.lineage.protocol import HOLE_BLOCK, MISSING_BLOCK, NOT_A_LIST, Column
from rayorch_flows.program.outcomes import MISSING

INLINE_BLOCK_BYTES: Final = 16_384
"""A whole block is cut where it grows beyond this, so that a consumer of a few rows is not sent all of them."""
INLINE_BATCH_BYTES: Final = 65_536
"""What one dispatch batch may carry inline before its payloads get objects of their own."""
_OUT_OF_BAND: Final = 4_096

_PLAIN: Final = frozenset({int, float, bool, str, bytes, bytearray, type(None)})
_CONTAINERS: Final = frozenset({list, tuple, dict, set, frozenset})
_NOT_PLAIN_AFTER: Final = 4  # bytes that look like a reference to a class, and are none: beyond this, load it and see

Dumps = Callable[..., bytes]
Row = list[Any]
"""The pickle of one row and its out-of-band buffers."""
RowsObject = tuple[Any, Any, dict[int, Row]]
"""Where each small row begins, and where the last ends; the small rows; the large ones."""
Payload = bytes | RowsObject


def dumps_any(value: Any, buffer_callback: Callable[[pickle.PickleBuffer], Any] | None = None) -> bytes:
    """Pickle by plain pickle where that can be done, else by value (classes of __main__ and local ones)."""
    try:
        return pickle.dumps(value, 5, buffer_callback=buffer_callback)
    except Exception:
        return cloudpickle.dumps(value, 5, buffer_callback=buffer_callback)


def dumps_by_value(value: Any, buffer_callback: Callable[[pickle.PickleBuffer], Any] | None = None) -> bytes:
    """Pickle what a driver's ``__main__`` may have defined: plain pickle would refer to a module no worker has."""
    return cloudpickle.dumps(value, 5, buffer_callback=buffer_callback)


class BadRow(Exception):
    """Row ``row`` cannot be pickled, or loaded again; ``reason`` says which, and what was raised."""

    def __init__(self, row: int, reason: str) -> None:
        self.row = row
        self.reason = reason
        super().__init__(reason)


class _Reference(Exception):
    pass


class _ReferenceFinder(cloudpickle.CloudPickler):
    def reducer_override(self, obj: Any) -> Any:
        if any(
            kind.__name__ == "ObjectRef" and kind.__module__.partition(".")[0] == "ray" for kind in type(obj).__mro__
        ):
            raise _Reference
        return super().reducer_override(obj)  # pyright: ignore


def holds_reference(value: Any, data: bytes) -> bool:
    """Whether ``value``, pickled as ``data``, holds a ray.ObjectRef: Ray would not see it in bytes, and whoever gets
    it would wait for ever."""
    if b"ObjectRef" not in data:
        return False
    try:
        _ReferenceFinder(io.BytesIO(), 5).dump(value)
    except _Reference:
        return True
    return False


def _names_a_class(data: bytes) -> bool:
    """Whether a pickle may refer to anything by name: one that does not holds builtins only, and loads."""
    at = data.find(b"\x93")  # STACK_GLOBAL, which follows a string or the memo's number of one; or a byte of a value
    for _ in range(_NOT_PLAIN_AFTER):
        if at < 0:
            return False
        if data[at - 1] == 0x94 or data[at - 2] == 0x68 or data[at - 5] == 0x6A:
            return True
        at = data.find(b"\x93", at + 1)
    return at >= 0


def _is_plain_array(value: Any) -> bool:
    return type(value).__module__ == "numpy" and getattr(getattr(value, "dtype", None), "hasobject", True) is False


def _encode_row(index: int, value: Any, dumps: Dumps, buffers: list[Any] | None = None) -> bytes:
    """One row's pickle, seen to load again."""

    def keep(buffer: pickle.PickleBuffer) -> bool:
        if buffer.raw().nbytes < _OUT_OF_BAND:
            return True  # in the pickle: a buffer of its own costs every reader of the block more
        taken.append(buffer)
        return False

    taken: list[Any] = []
    try:
        data = dumps(value) if buffers is None else dumps(value, buffer_callback=keep)
        if type(value) in _PLAIN:
            return data
    except Exception as error:
        raise BadRow(index, f"cannot be pickled: {type(error).__name__}: {error}") from None
    finally:
        if buffers is not None:
            buffers += taken
    if _is_plain_array(value) or not _names_a_class(data):
        return data
    if holds_reference(value, data):
        raise BadRow(index, "is or holds a ray.ObjectRef; pass the value itself, large ones lie in the object store")
    try:
        pickle.loads(data, buffers=taken)
    except Exception as error:
        raise BadRow(index, f"cannot be loaded again: {type(error).__name__}: {error}") from None
    return data


def bad_rows(rows: Sequence[Any], dumps: Dumps) -> dict[int, str]:
    """The rows that cannot be encoded, and why."""
    found: dict[int, str] = {}
    for index, value in enumerate(rows):
        try:
            _encode_row(index, value, dumps)
        except BadRow as error:
            found[index] = error.reason
    return found


def encode_whole(rows: list[Any], dumps: Dumps = dumps_any) -> list[tuple[int, bytes]]:
    """Rows as inline blocks of about ``INLINE_BLOCK_BYTES`` each: (number of rows, bytes)."""
    count = len(rows)
    kinds = set(map(type, rows))
    plain = kinds <= _PLAIN
    if not plain and not kinds <= _PLAIN | _CONTAINERS:
        plain = all(type(value) in _PLAIN or _is_plain_array(value) for value in rows)
        if not plain:
            return _apart(rows, dumps)
    try:
        data = dumps(rows)
    except Exception:
        return _apart(rows, dumps)
    if not plain and _names_a_class(data):
        return _apart(rows, dumps)
    pieces = min(count, -(-len(data) // INLINE_BLOCK_BYTES))
    if pieces <= 1:
        return [(count, data)]
    step = -(-count // pieces)
    parts = [rows[start : start + step] for start in range(0, count, step)]
    return [(len(part), dumps(part)) for part in parts]


def _apart(rows: Sequence[Any], dumps: Dumps) -> list[tuple[int, bytes]]:
    heads = [_encode_row(index, value, dumps) for index, value in enumerate(rows)]
    sizes = [len(head) for head in heads]
    ranges = cut(sizes, -(-sum(sizes) // INLINE_BLOCK_BYTES))
    return [(end - start, pickle.dumps(tuple(heads[start:end]), 5)) for start, end in ranges]


def encode_rows(rows: Sequence[Any], dumps: Dumps = dumps_any) -> tuple[list[Row], list[int]]:
    """Rows one by one, large buffers left where they are, and the bytes of each."""
    encoded: list[Row] = []
    sizes: list[int] = []
    for index, value in enumerate(rows):
        if type(value) in _PLAIN:
            head = dumps(value)
            encoded.append([head])
            sizes.append(len(head))
            continue
        buffers: list[Any] = []
        head = _encode_row(index, value, dumps, buffers)
        encoded.append([head, *buffers])
        sizes.append(len(head) + sum(buffer.raw().nbytes for buffer in buffers) if buffers else len(head))
    return encoded, sizes


def pack_rows(rows: Sequence[Row]) -> RowsObject:
    """Encoded rows as one object for the store."""
    starts = array("Q", [0])
    small: list[bytes] = []
    large: dict[int, Row] = {}
    end = 0
    for index, row in enumerate(rows):
        head = row[0]
        if len(row) > 1 or len(head) > _OUT_OF_BAND:
            large[index] = [pickle.PickleBuffer(head) if len(head) > _OUT_OF_BAND else head, *row[1:]]
        else:
            small.append(head)
            end += len(head)
        starts.append(end)
    return pickle.PickleBuffer(starts), pickle.PickleBuffer(b"".join(small)), large


def cut(sizes: Sequence[int], pieces: int) -> list[tuple[int, int]]:
    """Cut consecutive rows into at most ``pieces`` ranges of about equal bytes."""
    count = len(sizes)
    pieces = max(1, min(pieces, count))
    if pieces == 1:
        return [(0, count)]
    share = sum(sizes) / pieces
    ranges: list[tuple[int, int]] = []
    start, seen = 0, 0.0
    for index, size in enumerate(sizes):
        seen += size
        if seen >= share * (len(ranges) + 1) and len(ranges) < pieces - 1:
            ranges.append((start, index + 1))
            start = index + 1
    if start < count:
        ranges.append((start, count))
    return ranges


class _LazyRows:
    """Rows unpickled when asked for and once only."""

    def __init__(self, load: Callable[[int], Any]) -> None:
        self._load = load
        self._values: dict[int, Any] = {}

    def __getitem__(self, row: int) -> Any:
        try:
            return self._values[row]
        except KeyError:
            value = self._values[row] = self._load(row)
            return value


def open_block(payload: Payload, *, copy: bool = False) -> Any:
    """A block as something indexable by row. ``copy`` detaches large buffers from the object store."""
    if isinstance(payload, bytes):
        rows = pickle.loads(payload)
        return _LazyRows(lambda row: pickle.loads(rows[row])) if type(rows) is tuple else rows
    starts, small, large = payload
    begins, heads = memoryview(starts).cast("B").cast("Q"), memoryview(small)

    def load(row: int) -> Any:
        if row not in large:
            return pickle.loads(heads[begins[row] : begins[row + 1]])
        head, *buffers = large[row]
        if copy:
            buffers = [bytearray(memoryview(buffer)) for buffer in buffers]
        return pickle.loads(head, buffers=buffers)

    return _LazyRows(load)


def decode_column(column: Column, blocks: dict[int, Any], size: int) -> list[Any]:
    """The ``size`` values of a column over opened ``blocks``."""
    blocks[MISSING_BLOCK] = (MISSING,)
    blocks[HOLE_BLOCK] = column.holes
    leaves: list[Any] = [blocks[block][row] for block, row in zip(column.blocks, column.rows, strict=True)]
    if any(NOT_A_LIST in lengths for lengths in column.lengths):
        return _read_ragged(column, leaves, size)
    values = leaves
    for lengths in reversed(column.lengths):
        nested: list[Any] = []
        start = 0
        for length in lengths:
            nested.append(values[start : start + length])
            start += length
        values = nested
    if len(values) != size:
        raise AssertionError(f"a column of {size} rows decoded to {len(values)}")
    return values


def _read_ragged(column: Column, leaves: list[Any], size: int) -> list[Any]:
    """The slow way, for columns that have a leaf in place of a list somewhere."""
    cursors = [iter(lengths) for lengths in column.lengths]
    leaf = iter(leaves)

    def read(level: int) -> Any:
        if level == column.depth:
            return next(leaf)
        length = next(cursors[level])
        return next(leaf) if length == NOT_A_LIST else [read(level + 1) for _ in range(length)]

    return [read(0) for _ in range(size)]
