"""The one door to pyarrow, which ships no types: everything behind it is Any, and is narrowed where it is used."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import pyarrow
import pyarrow.compute
import pyarrow.fs

ArrowTable: TypeAlias = Any
"""A ``pyarrow.Table``."""
ArrowSchema: TypeAlias = Any
"""A ``pyarrow.Schema``."""

pa: Final[Any] = pyarrow
pc: Final[Any] = pyarrow.compute
pafs: Final[Any] = pyarrow.fs


def latest_of_each(table: ArrowTable, key: str, order: str) -> ArrowTable:
    """Of the rows that share ``key``, the one with the greatest ``order``, in the table's order. No per-row Python.

    Only the two columns are sorted: sorting gathers, and a string column gathers no more than 2 GiB.
    """
    if table.num_rows < 2:
        return table
    narrow = pa.table({"key": table[key], "order": table[order], "place": range(table.num_rows)})
    narrow = narrow.sort_by([("key", "ascending"), ("order", "descending")])
    keys = narrow["key"].combine_chunks()
    changed = pc.not_equal(keys.slice(1), keys.slice(0, len(keys) - 1))
    first = pa.concat_arrays([pa.array([True]), _one_chunk(changed)])
    return rows_at(table, narrow["place"].filter(first))


def rows_at(table: ArrowTable, places: Any) -> ArrowTable:
    """The rows at these places, in the table's order, chunk by chunk."""
    return table.filter(pc.is_in(pa.array(range(table.num_rows)), _array(places)))


def _array(values: Any) -> Any:
    return (
        _one_chunk(values) if isinstance(values, pyarrow.Array | pyarrow.ChunkedArray) else pa.array(values, pa.int64())
    )


def _one_chunk(array: Any) -> Any:
    return array.combine_chunks() if isinstance(array, pyarrow.ChunkedArray) else array
