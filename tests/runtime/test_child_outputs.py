"""Outputs may be Ports of child Domains: their Items of all source items, in order, with the lost ones in place."""

from __future__ import annotations

from typing import Any

import pytest

from rayorch_flows import Executor, F, ItemOutcome, OutputIssue, Pipeline, RayModule, RecordFailure

pytestmark = pytest.mark.ray


class Split:
    def run(self, sizes: list[int]) -> list[Any]:
        return [RecordFailure("no list") if size == 3 else list(range(size)) for size in sizes]


class Even:
    def run(self, values: list[int]) -> list[bool]:
        return [value % 2 == 0 for value in values]


class Tenfold:
    def run(self, values: list[int]) -> list[Any]:
        return [RecordFailure("two") if value == 2 else value * 10 for value in values]


class Sum:
    def run(self, groups: list[list[int]]) -> list[int]:
        return [sum(group) for group in groups]


class Nested(Pipeline):
    def __init__(self) -> None:
        self.split = RayModule(Split).ray_options(batch_size=4, num_cpus=0)
        self.even = RayModule(Even).ray_options(batch_size=4, num_cpus=0)
        self.tenfold = RayModule(Tenfold).ray_options(batch_size=3, num_cpus=0)
        self.sum = RayModule(Sum).ray_options(num_cpus=0)

    def forward(self, sizes: Any) -> Any:
        numbers = F.expand(self.split(sizes))
        even = F.filter(numbers, self.even(numbers))
        return self.tenfold(even), (self.sum(F.reduce(even)), (even,))


@pytest.mark.usefixtures("ray_cluster")
def test_child_outputs_are_one_list_over_the_domain_and_nested_as_forward_returned_them() -> None:
    dropped = OutputIssue(ItemOutcome.DROPPED)
    with Executor(Nested()) as executor:
        tens, (sums, (evens,)) = executor.run([1, 4, 3, 5, 0], input_batch_size=2, max_active_input_batches=2).outputs
        streamed = {outcome.index: outcome.outputs[0] for outcome in executor.stream([1, 4, 3])}
    two = OutputIssue(ItemOutcome.FAILED, "two")
    assert tens == [0, 0, dropped, two, dropped, 0, dropped, two, dropped, 40]
    assert sums == [0, 2, OutputIssue(ItemOutcome.SUPPRESSED, "no list"), 6, 0]
    assert evens == [0, 0, dropped, 2, dropped, 0, dropped, 2, dropped, 4]
    assert streamed == {0: [0], 1: [0, dropped, two, dropped], 2: []}
