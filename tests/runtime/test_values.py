"""Values that cannot travel, through real actors: who is blamed, and who is not."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest
import ray

from rayorch_flows import ExecutionError, Executor, ItemOutcome, OutputIssue, Pipeline, RayModule, RecoveryPolicy
from tests.runtime.functions import CPU, AddOne, Flat
from tests.runtime.test_codec import TwoArguments

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]


class Same:
    def __init__(self, _: Any = None) -> None:
        pass

    def run(self, values: list[Any]) -> list[Any]:
        return values


class Odd:
    """One value that does not load, one that holds a reference, one that only workers can load."""

    def run(self, values: list[int]) -> list[Any]:
        made = {1: lambda: TwoArguments(500, "no"), 2: lambda: [ray.put(1)], 3: lambda: NotIn(os.getppid())}
        return [made[value]() if value in made else value for value in values]


class NotIn:
    """Loads in every process but the driver's."""

    def __init__(self, made_in: int) -> None:
        self.made_in = made_in

    def __reduce__(self) -> Any:
        return _load, (self.made_in,)


def _load(made_in: int) -> NotIn:
    if ray.get_runtime_context().worker.mode == 0:
        raise ImportError("no such module here")
    return NotIn(made_in)


class Through(Pipeline):
    def __init__(self, batch_size: int) -> None:
        options: dict[str, Any] = {"batch_size": batch_size, "recovery": RecoveryPolicy.isolate_tail(), **CPU}
        self.odd = RayModule(Odd).ray_options(**options)
        self.same = RayModule(Same).ray_options(**options)

    def forward(self, values: Any) -> Any:
        return self.same(self.odd(values))


@pytest.mark.parametrize("batch_size", [1, 6])
def test_a_value_that_cannot_be_loaded_again_fails_its_own_grain_and_blames_the_call_that_made_it(
    batch_size: int,
) -> None:
    with Executor(Through(batch_size)) as executor:
        outcomes = sorted(executor.stream(list(range(6))), key=lambda outcome: outcome.index)
    assert [outcome.value for outcome in outcomes] == [0, None, None, None, 4, 5]
    told = [outcome.cause for outcome in outcomes[1:4]]
    assert [cause and cause.call for cause in told] == ["odd", "odd", "same"]
    texts = ["cannot be loaded again: TypeError", "ray.ObjectRef; pass the value itself", "where results are read"]
    for cause, text in zip(told, texts, strict=True):
        assert cause is not None
        assert text in cause.message


def test_a_source_value_that_cannot_travel_fails_its_own_source_item() -> None:
    source = [1, threading.Lock(), TwoArguments(500, "no"), [ray.put(1)], 3]
    with Executor(Flat(RayModule(Same).ray_options(**CPU))) as executor:
        for size in (None, 2):
            outputs = executor.run(source, input_batch_size=size).outputs
            assert [outputs[0], outputs[4]] == [1, 3]
            for issue, text in zip(outputs[1:4], ["pickled: TypeError", "loaded again", "ray.ObjectRef"], strict=True):
                assert isinstance(issue, OutputIssue)
                assert issue.outcome is not ItemOutcome.PRESENT
                assert text in (issue.cause or "")


def test_a_reference_among_the_constructor_arguments_is_one_clear_error() -> None:
    with (
        Executor(Flat(RayModule(Same).pre_init([ray.put(1)]).ray_options(**CPU))) as executor,
        pytest.raises(ExecutionError, match=r"arguments of 'module' hold a ray\.ObjectRef"),
    ):
        executor.run([1])
    with Executor(Flat(RayModule(AddOne).ray_options(**CPU))) as executor:
        assert executor.run([1]).outputs == [2]
