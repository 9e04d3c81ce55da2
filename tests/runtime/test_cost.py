"""The fixed cost of a dispatch batch, told from durations."""

from __future__ import annotations

from math import inf

import pytest

from rayorch_flows.runtime.cost import MOST_PER_CALL, RPC_S, BatchCost, batches_per_call


def cost_of(batches: list[tuple[int, float]]) -> float:
    cost = BatchCost()
    for rows, seconds in batches:
        cost.seen(rows, seconds)
    return cost.overhead_rows()


def test_a_model_with_a_fixed_cost_is_recovered() -> None:
    assert cost_of([(n, 0.4 + 0.005 * n) for n in (64, 40, 10, 64, 3)]) == pytest.approx((0.4 + RPC_S) / 0.005)


def test_a_cost_by_the_row_leaves_the_way_to_the_actor() -> None:
    assert cost_of([(n, 0.05 * n) for n in (48, 20, 7)]) == pytest.approx(RPC_S / 0.05)


@pytest.mark.parametrize("batches", [[], [(8, 0.1)], [(64, 0.3)] * 20, [(4, 0.9), (64, 0.1)]])
def test_too_little_is_known(batches: list[tuple[int, float]]) -> None:
    assert cost_of(batches) == inf


def test_the_past_fades() -> None:
    cost = BatchCost()
    for n in (10, 60) * 200:
        cost.seen(n, 1.0 + 0.01 * n)
    for n in (10, 60) * 200:
        cost.seen(n, 0.01 * n)
    assert cost.overhead_rows() < 1.0


@pytest.mark.parametrize(
    ("batch_s", "batches"),
    [(inf, 1), (5.0, 1), (RPC_S, 1), (RPC_S / 2.5, 2), (RPC_S / 1_000, MOST_PER_CALL), (0.0, MOST_PER_CALL)],
)
def test_batches_shorter_than_the_way_to_the_actor_share_a_call(batch_s: float, batches: int) -> None:
    assert batches_per_call(batch_s) == batches


def test_what_a_batch_takes_is_a_mean_that_forgets() -> None:
    cost = BatchCost()
    assert cost.batch_s() == inf
    cost.seen(3, 0.5)
    assert cost.batch_s() == 0.5
    for _ in range(400):
        cost.seen(3, 0.1)
    assert cost.batch_s() == pytest.approx(0.1, rel=0.01)
