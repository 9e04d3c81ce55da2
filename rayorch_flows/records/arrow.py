"""The one door to pyarrow, which ships no types: everything behind it is Any, and is narrowed where it is used."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeAlias

import pyarrow
import pyarrow.compute
import pyarrow.dataset
import pyarrow.fs

ArrowTable: TypeAlias = Any
"""A ``pyarrow.Table``."""
ArrowSchema: TypeAlias = Any
"""A ``pyarrow.Schema``."""

pa: Final[Any] = pyarrow
pc: Final[Any] = pyarrow.compute
ds: Final[Any] = pyarrow.dataset
pafs: Final[Any] = pyarrow.fs


def first_of_each(table: ArrowTable, key: str, order: str) -> ArrowTable:
    """Of the rows that share ``key``, the one with the greatest ``order``. No per-row Python."""
    if table.num_rows < 2:
        return table
    table = table.sort_by([(key, "ascending"), (order, "descending")])
    keys = table[key].combine_chunks()
    changed = pc.not_equal(keys.slice(1), keys.slice(0, len(keys) - 1))
    return table.filter(pa.concat_arrays([pa.array([True]), _one_chunk(changed)]))


def strings(column: Any) -> list[str]:
    """A string column as a list, nulls as empty strings."""
    values: Iterable[str | None] = column.to_pylist()
    return [value or "" for value in values]


def _one_chunk(array: Any) -> Any:
    return array.combine_chunks() if isinstance(array, pyarrow.ChunkedArray) else array
