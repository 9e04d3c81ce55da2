"""How payload rows become bytes, and back.

A block is a run of rows in one of two encodings:

*whole*  ``bytes``: the pickled list of rows. Small values travel so, inside requests and replies.
*rows*   a list with, for each row, its pickle and its out-of-band buffers. Large values lie so in the object store:
         a consumer maps them and unpickles only the rows that it was given.
"""

from __future__ import annotations

import pickle
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

Dumps = Callable[..., bytes]
RowsObject = list[list[Any]]
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


class UnpicklableRow(Exception):
    """Row ``row`` cannot be pickled; ``reason`` is what the pickler said."""

    def __init__(self, row: int, reason: str) -> None:
        self.row = row
        self.reason = reason
        super().__init__(reason)


def _first_bad_row(rows: Sequence[Any], dumps: Dumps, error: Exception) -> UnpicklableRow:
    for index, value in enumerate(rows):
        try:
            dumps(value)
        except Exception as row_error:
            return UnpicklableRow(index, f"{type(row_error).__name__}: {row_error}")
    return UnpicklableRow(0, f"{type(error).__name__}: {error}")


def encode_whole(rows: list[Any], dumps: Dumps = dumps_any) -> list[tuple[int, bytes]]:
    """Rows as whole blocks of about ``INLINE_BLOCK_BYTES`` each: (number of rows, bytes)."""
    try:
        data = dumps(rows)
        count = len(rows)
        pieces = min(count, -(-len(data) // INLINE_BLOCK_BYTES))
        if pieces <= 1:
            return [(count, data)]
        step = -(-count // pieces)
        parts = [rows[start : start + step] for start in range(0, count, step)]
        return [(len(part), dumps(part)) for part in parts]
    except Exception as error:
        raise _first_bad_row(rows, dumps, error) from None


def encode_rows(rows: Sequence[Any], dumps: Dumps = dumps_any) -> tuple[RowsObject, list[int]]:
    """Rows one by one, large buffers left where they are, and the bytes of each."""
    encoded: RowsObject = []
    sizes: list[int] = []
    for index, value in enumerate(rows):
        buffers: list[Any] = []
        try:
            head = dumps(value, buffer_callback=buffers.append)
            size = len(head) + sum(buffer.raw().nbytes for buffer in buffers)
        except Exception as error:
            raise UnpicklableRow(index, f"{type(error).__name__}: {error}") from None
        encoded.append([pickle.PickleBuffer(head) if len(head) > _OUT_OF_BAND else head, *buffers])
        sizes.append(size)
    return encoded, sizes


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
    """Rows of a *rows* object, unpickled when asked for and once only."""

    def __init__(self, rows: RowsObject, copy: bool) -> None:
        self._rows = rows
        self._copy = copy
        self._values: dict[int, Any] = {}

    def __getitem__(self, row: int) -> Any:
        try:
            return self._values[row]
        except KeyError:
            head, *buffers = self._rows[row]
            if self._copy:
                buffers = [bytearray(memoryview(buffer)) for buffer in buffers]
            value = self._values[row] = pickle.loads(head, buffers=buffers)
            return value


def open_block(payload: Payload, *, copy: bool = False) -> Any:
    """A block as something indexable by row. ``copy`` detaches large buffers from the object store."""
    if isinstance(payload, bytes):
        return pickle.loads(payload)
    return _LazyRows(payload, copy)


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
