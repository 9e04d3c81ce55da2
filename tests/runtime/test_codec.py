"""Rows to bytes and back, without Ray."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import numpy as np
import pytest

from rayorch_flows.lineage.protocol import HOLE_BLOCK, MISSING_BLOCK, NOT_A_LIST, Column
from rayorch_flows.program.outcomes import MISSING, CauseKind, Hole
from rayorch_flows.runtime.codec import (
    INLINE_BLOCK_BYTES,
    UnpicklableRow,
    cut,
    decode_column,
    encode_rows,
    encode_whole,
    open_block,
)


def column(blocks: list[int], rows: list[int], *lengths: list[int], holes: list[Hole] | None = None) -> Column:
    return Column(len(lengths), lengths, blocks, rows, holes or [])


def test_small_rows_are_one_block() -> None:
    [(count, data)] = encode_whole(["a", None, {"b": 1}])
    assert count == 3
    assert open_block(data)[2] == {"b": 1}


def test_whole_blocks_are_cut_where_they_grow() -> None:
    rows = [bytes([i]) * 1000 for i in range(100)]
    blocks = encode_whole(rows)
    assert len(blocks) > 3
    assert all(len(data) < 2 * INLINE_BLOCK_BYTES for _, data in blocks)
    assert [row for count, data in blocks for row in pickle.loads(data)] == rows


def test_rows_keep_buffers_out_of_band_and_are_read_one_by_one() -> None:
    rows, sizes = encode_rows([np.zeros(10_000), "small"])
    assert len(rows[0]) == 2
    assert sizes[0] > 80_000 > 100 > sizes[1]
    stored = [[bytes(part.raw()) if isinstance(part, pickle.PickleBuffer) else part for part in row] for row in rows]
    assert open_block(stored)[1] == "small"
    assert not open_block(stored)[0].flags.writeable
    assert open_block(stored, copy=True)[0].flags.writeable


def test_a_row_that_cannot_be_pickled_is_named() -> None:
    rows: list[Any] = [1, 2, threading.Lock()]
    for encode in (encode_whole, encode_rows):
        with pytest.raises(UnpicklableRow) as error:
            encode(rows)
        assert error.value.row == 2
        assert "lock" in error.value.reason


def test_a_local_class_travels_by_value() -> None:
    class Local:
        def __init__(self) -> None:
            self.x = 5

    [(_, data)] = encode_whole([Local()])
    assert pickle.loads(data)[0].x == 5


@pytest.mark.parametrize(
    ("sizes", "pieces", "ranges"),
    [
        ([1, 1, 1, 1], 2, [(0, 2), (2, 4)]),
        ([10, 1, 1], 3, [(0, 1), (1, 2), (2, 3)]),
        ([1], 5, [(0, 1)]),
        ([5, 5, 5], 1, [(0, 3)]),
        ([1, 1, 100], 3, [(0, 3)]),
    ],
)
def test_cut(sizes: list[int], pieces: int, ranges: list[tuple[int, int]]) -> None:
    assert cut(sizes, pieces) == ranges


def test_columns_nest_by_their_lengths() -> None:
    blocks = {7: ["a", "b", "c", "d"]}
    assert decode_column(column([7, 7], [3, 0]), dict(blocks), 2) == ["d", "a"]
    assert decode_column(column([7, 7, 7], [0, 1, 2], [2, 0, 1]), dict(blocks), 3) == [["a", "b"], [], ["c"]]
    assert decode_column(column([7, 7, 7], [0, 1, 2], [2, 1], [1, 0, 2]), dict(blocks), 2) == [
        [["a"], []],
        [["b", "c"]],
    ]


def test_missing_values_and_holes() -> None:
    hole = Hole(CauseKind.CORRUPT, "gone")
    blocks = {7: ["a", "b"]}
    got = decode_column(column([7, MISSING_BLOCK, HOLE_BLOCK], [1, 0, 0], holes=[hole]), blocks, 3)
    assert got == ["b", MISSING, hole]


def test_a_leaf_in_place_of_a_list() -> None:
    hole = Hole(CauseKind.CORRUPT, "gone")
    spec = column([7, HOLE_BLOCK, 7], [0, 0, 1], [1, NOT_A_LIST, 1], [1, 1], holes=[hole])
    assert decode_column(spec, {7: ["a", "b"]}, 3) == [[["a"]], hole, [["b"]]]


def test_a_column_of_the_wrong_size_is_noticed() -> None:
    with pytest.raises(AssertionError):
        decode_column(column([7], [0]), {7: ["a"]}, 2)
