"""The worker without Ray: requests in, replies out."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import cloudpickle
import numpy as np
import pytest

from rayorch_flows.lineage.protocol import Column, DispatchBatch
from rayorch_flows.program.outcomes import CauseKind, GroupFailure, RecordFailure
from rayorch_flows.runtime.payloads.codec import encode_whole, open_block
from rayorch_flows.runtime.payloads.wire import (
    ERROR,
    OK,
    CallSpec,
    OutputSpec,
    Raised,
    RawFailure,
    RawOutput,
    pack_request,
    unpack_reply,
)
from rayorch_flows.runtime.worker import Worker
from tests.runtime.test_codec import TwoArguments, through_store

VALUE = OutputSpec("out", value=True, mask=False)


def worker(function: Any, *outputs: OutputSpec, **kwargs: Any) -> Worker:
    call = CallSpec(0, "call", ("",), tuple(kwargs.items()), outputs or (VALUE,))
    made = Worker((call,))
    assert made.load(cloudpickle.dumps((function, (), {}))) is None
    return made


def reading(block: int, rows: list[int]) -> DispatchBatch:
    """A dispatch batch over these rows of a block."""
    return DispatchBatch(1, 0, 0, (), (Column(0, (), [block] * len(rows), rows, []),), len(rows))


def ask(made: Worker, values: list[Any], slots: int = 0) -> Any:
    [(_, data)] = encode_whole(values)
    answer = made.run(pack_request([reading(0, list(range(len(values))))], [(0, data)], slots))
    reply, *objects = answer if slots else (answer,)
    [batch] = unpack_reply(reply)
    return batch, objects


def ok(made: Worker, values: list[Any]) -> tuple[list[RawFailure], list[RawOutput]]:
    reply, _ = ask(made, values)
    assert reply[0] == OK, reply
    return reply[1], reply[2]


def error(made: Worker, values: list[Any]) -> Raised:
    reply, _ = ask(made, values)
    assert reply[0] == ERROR, reply
    return reply[1]


def rows(output: RawOutput) -> list[Any]:
    return [value for _, _, data in output.values for value in pickle.loads(data)]  # type: ignore[arg-type]


def test_a_plain_function_an_instance_and_a_class() -> None:
    class Double:
        def run(self, values: list[int]) -> list[int]:
            return [2 * value for value in values]

    functions: list[Any] = [lambda values: [2 * value for value in values], Double, Double()]
    for function in functions:
        assert rows(ok(worker(function), [1, 2])[1][0]) == [2, 4]


def test_static_arguments_and_arguments_by_keyword() -> None:
    call = CallSpec(0, "call", ("right",), (("plus", 5),), (VALUE,))
    made = Worker((call,))

    def function(*, right: list[int], plus: int) -> list[int]:
        return [value + plus for value in right]

    made.load(cloudpickle.dumps((function, (), {})))
    assert rows(ok(made, [1, 2])[1][0]) == [6, 7]


def test_failures_leave_the_columns_and_the_first_output_names_the_cause() -> None:
    def function(values: list[int]) -> Any:
        return [RecordFailure("left", CauseKind.CORRUPT), 1, 2], [3, GroupFailure(ValueError("right")), 4]

    failures, outputs = ok(worker(function, VALUE, VALUE), [0, 0, 0])
    assert failures == [
        RawFailure(0, CauseKind.CORRUPT, "left", False, False),
        RawFailure(1, CauseKind.FUNCTION_ERROR, "ValueError: right", False, True),
    ]
    assert [rows(output) for output in outputs] == [[2], [4]]


def test_a_kind_that_may_pass_is_retryable() -> None:
    failures, _ = ok(worker(lambda values: [RecordFailure("late", CauseKind.TIMEOUT)]), [0])
    assert failures[0].retryable


def test_groups_masks_and_values_of_one_output() -> None:
    spec = OutputSpec("out", value=True, mask=False, group=1, elements=True)
    _, [output] = ok(worker(lambda values: [[1, 2], (), [3]], spec), [0, 0, 0])
    assert output.lengths == [2, 0, 1]
    assert [pickle.loads(data) for _, _, data in output.elements] == [[1, 2, 3]]  # type: ignore[arg-type]
    assert rows(output) == [[1, 2], (), [3]]
    mask = OutputSpec("mask", value=False, mask=True)
    _, [output] = ok(worker(lambda values: [True, False, np.bool_(True)], mask), [0, 0, 0])
    assert output.mask == b"\x01\x00\x01"
    assert output.values == []
    flags = OutputSpec("flags", value=False, mask=False, group=1, elements=False, element_mask=True)
    _, [output] = ok(worker(lambda values: [[True], [], [False, True]], flags), [0, 0, 0])
    assert (output.lengths, output.element_mask, output.elements) == ([1, 0, 2], b"\x01\x00\x01", [])


@pytest.mark.parametrize(
    ("function", "outputs", "told"),
    [
        (lambda values: values[1:], (VALUE,), "has 1 rows for a batch of 2"),
        (lambda values: None, (VALUE,), "got None"),
        (lambda values: (v for v in values), (VALUE,), "'generator'"),
        (lambda values: values, (VALUE, VALUE), "output 0 has to be a list"),
        (lambda values: (values,), (VALUE, VALUE), "expected 2 outputs, got 1"),
        (lambda values: [1, 2], (OutputSpec("m", value=False, mask=True),), "True or False, got a value of type 'int'"),
        (lambda values: [[1], "ab"], (OutputSpec("g", value=False, mask=False, group=1),), "has to be a list"),
        (
            lambda values: ([[1], [2]], [[1], [2, 3]]),
            (
                OutputSpec("left", value=False, mask=False, group=1),
                OutputSpec("right", value=False, mask=False, group=1),
            ),
            "present row 1 has 1 and 2 elements",
        ),
    ],
)
def test_a_broken_contract_is_told(function: Callable[..., Any], outputs: tuple[OutputSpec, ...], told: str) -> None:
    raised = error(worker(function, *outputs), [1, 2])
    assert raised.kind is CauseKind.CONTRACT
    assert told in raised.message


def test_an_exception_comes_with_the_users_frames_only() -> None:
    def inner() -> None:
        raise KeyError("here")

    def function(values: list[int]) -> list[int]:
        inner()
        return values

    raised = error(worker(function), [1])
    assert raised.kind is CauseKind.FUNCTION_ERROR
    assert raised.message == "KeyError: 'here'"
    assert "in inner" in raised.traceback
    assert "runtime/worker.py" not in raised.traceback
    assert isinstance(pickle.loads(raised.pickled), KeyError)


def test_an_exception_that_cannot_be_unpickled_is_text() -> None:
    class Odd(Exception):
        def __init__(self, one: int, two: int) -> None:
            super().__init__(f"{one} and {two}")

    def function(values: list[int]) -> list[int]:
        raise Odd(1, 2)

    raised = error(worker(function), [1])
    assert raised.message == "Odd: 1 and 2"
    assert raised.pickled == b""


def test_large_streams_share_the_slots_and_small_ones_stay_inline() -> None:
    def function(values: list[int]) -> Any:
        return [np.full(50_000, value, np.uint8) for value in values], values

    reply, objects = ask(worker(function, VALUE, VALUE), list(range(8)), slots=4)
    _, _, (large, small), _, _ = reply
    assert sum(count for count, _, _ in large.values) == 8
    assert len(large.values) == 4
    slots = [held for _, _, held in large.values]
    assert [int(open_block(through_store(objects[slot]))[1][0]) for slot in slots] == [1, 3, 5, 7]
    assert rows(small) == list(range(8))


def test_slots_stay_empty_where_everything_is_small() -> None:
    reply, objects = ask(worker(lambda values: values), [1, 2], slots=3)
    assert objects == [None, None, None]
    assert rows(reply[2][0]) == [1, 2]


@pytest.mark.parametrize("slots", [0, 1])
def test_an_output_that_cannot_be_loaded_again_breaks_the_contract(slots: int) -> None:
    made = worker(lambda values: [TwoArguments(500, "no") if value == 1 else value for value in values])
    reply, _ = ask(made, [0, 1, 2], slots)
    assert reply[0] == ERROR
    assert reply[1].kind is CauseKind.CONTRACT
    assert "output 'out' holds a value that cannot be loaded again: TypeError" in reply[1].message


def test_a_constructor_that_raises_is_reported() -> None:
    def make() -> None:
        raise OSError("no model")

    class Broken:
        def __init__(self) -> None:
            make()

    raised = Worker(()).load(cloudpickle.dumps((Broken, (), {})))
    assert raised is not None
    assert raised.message == "OSError: no model"


def test_batches_of_one_call_do_not_see_what_another_does_to_a_shared_argument() -> None:
    def function(values: list[list[int]]) -> list[int]:
        for value in values:
            value.append(0)
        return [len(value) for value in values]

    batches = [reading(7, [0, 1]), reading(7, [1, 0])]
    replies = unpack_reply(worker(function).run(pack_request(batches, [(7, pickle.dumps([[1], [1, 2]]))], 0)))
    assert [rows(reply[2][0]) for reply in replies] == [[2, 3], [3, 2]]


def test_batches_of_one_call_share_its_blocks_and_none_takes_another_along() -> None:
    def function(values: list[int]) -> list[int]:
        if 3 in values:
            raise ValueError("three")
        return [value + 1 for value in values]

    made = worker(function)
    blocks: list[tuple[int, bytes | None]] = [(7, pickle.dumps([1, 2, 3])), (8, b"no pickle"), (9, pickle.dumps([4]))]
    batches = [reading(7, [0]), reading(8, [0]), reading(7, [2]), reading(7, [1, 0]), reading(9, [0])]
    replies = unpack_reply(made.run(pack_request(batches, blocks, 0)))
    assert [reply[0] for reply in replies] == [OK, ERROR, ERROR, OK, OK]
    assert [rows(reply[2][0]) for reply in replies if reply[0] == OK] == [[2], [3, 2], [5]]
    assert "UnpicklingError" in replies[1][1].message
    assert replies[2][1].message == "ValueError: three"
    assert all(ended <= began for (*_, ended), (*_, began, _) in pairwise(replies))


def test_a_cause_whose_text_is_an_unpicklable_kind_of_str_is_its_text() -> None:
    class Text(str):
        def __reduce__(self) -> Any:
            raise TypeError("never")

    class Strange:
        def __str__(self) -> str:
            return Text("strange")

    failures, _ = ok(worker(lambda values: [RecordFailure(Strange())]), [0])
    assert failures[0].message == "strange"
