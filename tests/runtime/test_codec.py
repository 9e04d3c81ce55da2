"""Rows to bytes and back, without Ray."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import numpy as np
import pytest

from rayorch_flows.lineage.protocol import HOLE_BLOCK, MISSING_BLOCK, NOT_A_LIST, Column
from rayorch_flows.program.outcomes import MISSING, CauseKind, Hole
from rayorch_flows.runtime.payloads.codec import (
    INLINE_BLOCK_BYTES,
    BadRow,
    cut,
    decode_column,
    encode_rows,
    encode_whole,
    open_block,
    pack_rows,
)


def column(blocks: list[int], rows: list[int], *lengths: list[int], holes: list[Hole] | None = None) -> Column:
    return Column(len(lengths), lengths, blocks, rows, holes or [])


class TwoArguments(Exception):
    """Pickles, and does not load."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)


def through_store(rows: Any) -> Any:
    """What the object store would give back: read-only buffers."""
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(rows, 5, buffer_callback=buffers.append)
    return pickle.loads(data, buffers=[bytes(buffer.raw()) for buffer in buffers])


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
    stored = through_store(pack_rows(rows))
    assert open_block(stored)[1] == "small"
    assert not open_block(stored)[0].flags.writeable
    assert open_block(stored, copy=True)[0].flags.writeable


def test_a_row_that_cannot_be_pickled_is_named() -> None:
    rows: list[Any] = [1, 2, threading.Lock()]
    for encode in (encode_whole, encode_rows):
        with pytest.raises(BadRow) as error:
            encode(rows)
        assert error.value.row == 2
        assert "lock" in error.value.reason


@pytest.mark.parametrize("nested", [False, True])
def test_a_row_that_pickles_but_does_not_load_is_named(nested: bool) -> None:
    bad: Any = TwoArguments(500, "no")
    for encode in (encode_whole, encode_rows):
        with pytest.raises(BadRow, match="cannot be loaded again: TypeError") as error:
            encode([1, "TwoArguments", {"a": [bad]} if nested else bad, 3])
        assert error.value.row == 2


class Moody:
    """Loads where it was made, and nowhere else."""

    here = True

    def __reduce__(self) -> Any:
        return _load, ()


def _load() -> Moody:
    if not Moody.here:
        raise ImportError("not here")
    return Moody()


def test_rows_of_classes_are_loaded_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    [(count, data)] = encode_whole([1, Moody(), {"a": 3}])
    monkeypatch.setattr(Moody, "here", False)
    block = open_block(data)
    assert count == 3
    assert (block[0], block[2]) == (1, {"a": 3})
    with pytest.raises(ImportError):
        block[1]


def test_plain_rows_are_not_loaded_to_see_whether_they_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    plain: list[list[Any]] = [
        [1, 147, None],
        ["a", "\u4e93"],
        [(1, "a"), {"b": [2.0]}],
        [np.arange(9), np.float32(1), np.zeros(9_000)],
    ]
    monkeypatch.setattr(pickle, "loads", lambda *args, **kwargs: 1 / 0)
    for rows in plain:
        encode_whole(rows)
        encode_rows(rows)


def test_object_references_are_refused_at_any_depth() -> None:
    import ray

    reference = ray.ObjectRef(bytes(28))
    for value in (reference, {"a": [reference]}):
        for encode in (encode_whole, encode_rows):
            with pytest.raises(BadRow, match=r"ray\.ObjectRef; pass the value itself") as error:
                encode([1, value])
            assert error.value.row == 1
    encode_rows(["ObjectRef", threading.Thread, "ObjectRef"])


def test_opening_rows_costs_the_same_whatever_their_number() -> None:
    rows, _ = encode_rows([*range(5_000), np.zeros(10_000)])
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(pack_rows(rows), 5, buffer_callback=buffers.append)
    assert len(head) < 1_000
    assert len(buffers) == 3
    block = open_block(through_store(pack_rows(rows)))
    assert [block[0], block[4_999], block[5_000].nbytes] == [0, 4_999, 80_000]


def test_a_local_class_travels_by_value() -> None:
    class Local:
        def __init__(self) -> None:
            self.x = 5

    [(_, data)] = encode_whole([Local()])
    assert open_block(data)[0].x == 5


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
