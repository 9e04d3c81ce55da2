"""Actor calls: dispatch batches that are shorter than their way to the actor share one."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from rayorch_flows import CauseKind, ExecutionError, Executor, ItemOutcome, Pipeline, RayModule
from rayorch_flows.runtime import pool as pool_module
from rayorch_flows.runtime.cost import MOST_PER_CALL, BatchCost, batches_per_call
from rayorch_flows.runtime.payloads.codec import INLINE_BATCH_BYTES
from rayorch_flows.runtime.pool import Replica
from rayorch_flows.runtime.traffic import Traffic
from tests.runtime.functions import CPU, AddOne, Documents, Flat, Poison, Slow, wait_for
from tests.runtime.test_failures import only_this_grain_is_late, pids

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]

DOCS = [40, 3, 0, 25, 120] * 12
ANSWERS = [list(range(1, pages + 1)) for pages in DOCS]


@dataclass
class Sent:
    """Actor calls to the Function in the middle, or the only one: how many batches each carried, its inline bytes, and
    how many were on their way."""

    batches: list[int] = field(default_factory=list[int])
    nbytes: list[int] = field(default_factory=list[int])
    on_the_way: list[int] = field(default_factory=list[int])


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    found = Sent()
    send = Replica.send

    def noting(self: Replica, flight: Any, request: bytes, objects: Any, slots: int, done: Any) -> None:
        if self.pool.module.name in ("middle", "module"):
            found.batches.append(len(flight.batches))
            found.nbytes.append(len(request))
            found.on_the_way.append(len(self.flights))
            assert self.holds >= sum(len(f.batches) for f in self.flights)
            assert len(flight.batches) == 1 or not (slots or objects)
        send(self, flight, request, objects, slots, done)

    monkeypatch.setenv("RAYORCH_FLOWS_VALIDATE", "1")
    monkeypatch.setattr(Replica, "send", noting)
    return found


@pytest.fixture
def short_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """What batches take is counted in millionths: they are short on any machine, once something is known of them."""
    monkeypatch.setattr(pool_module, "batches_per_call", lambda batch_s: batches_per_call(batch_s / 1e6))


@pytest.mark.usefixtures("short_batches")
def test_short_batches_share_calls_and_no_more_calls_than_asked_for_are_on_their_way(sent: Sent) -> None:
    module = RayModule(AddOne).ray_options(batch_size=2, max_in_flight=3, deadline_s=60, **CPU)
    with Executor(Documents(module, total=False)) as executor:
        result = executor.run(DOCS)
    assert result.outputs == ANSWERS
    middle = next(call for call in result.calls if call.call == "middle")
    assert sum(sent.batches) == middle.batches  # each batch went once
    assert 1 < max(sent.batches) <= MOST_PER_CALL
    assert len(sent.batches) < middle.batches / 2
    assert max(sent.on_the_way) == 3


def test_each_batch_that_is_long_is_a_call(sent: Sent) -> None:
    module = RayModule(Slow).pre_init(0.002).ray_options(batch_size=8, **CPU)
    with Executor(Documents(module, total=False)) as executor:
        assert executor.run(DOCS[:5]).outputs == ANSWERS[:5]
    assert set(sent.batches) == {1}


@pytest.mark.usefixtures("short_batches")
def test_what_the_first_batch_of_an_actor_takes_does_not_count(sent: Sent, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many Functions load something with it; what all others take does count."""
    took: list[float] = []
    learned: list[float] = []
    tally, seen = Traffic._tally, BatchCost.seen  # pyright: ignore[reportPrivateUsage]

    def tallying(self: Traffic, batch: Any, started: float, ended: float) -> None:
        took.append(ended - started)
        tally(self, batch, started, ended)

    def seeing(self: BatchCost, rows: int, seconds: float) -> None:
        learned.append(seconds)
        seen(self, rows, seconds)

    monkeypatch.setattr(Traffic, "_tally", tallying)
    monkeypatch.setattr(BatchCost, "seen", seeing)
    with Executor(Flat(RayModule(AddOne).ray_options(batch_size=2, **CPU))) as executor:
        assert executor.run(list(range(200))).outputs == list(range(1, 201))
    assert learned == took[1:]
    assert max(sent.batches) > 1


class Kilobytes:
    def run(self, values: list[int]) -> list[bytes]:
        return [bytes([value % 256]) * 4_000 for value in values]


class Sizes:
    def run(self, values: list[bytes]) -> list[int]:
        return [len(value) for value in values]


class Wide(Pipeline):
    def __init__(self) -> None:
        self.wide = RayModule(Kilobytes).ray_options(batch_size=4, **CPU)
        self.middle = RayModule(Sizes).ray_options(batch_size=4, **CPU)

    def forward(self, values: Any) -> Any:
        return self.middle(self.wide(values))


@pytest.mark.usefixtures("short_batches")
def test_a_call_carries_no_more_inline_bytes_than_a_batch_may(sent: Sent) -> None:
    with Executor(Wide()) as executor:
        assert executor.run(list(range(1_500))).outputs == [4_000] * 1_500
    assert max(sent.batches) > 1
    assert max(sent.nbytes) < INLINE_BATCH_BYTES + 20_000


class Arrays:
    def run(self, values: list[int]) -> list[Any]:
        return [np.full(50_000, value, np.uint8) for value in values]


def test_what_has_objects_of_its_own_goes_by_itself(sent: Sent) -> None:
    module = RayModule(Arrays).ray_options(batch_size=2, **CPU)
    with Executor(Documents(module, total=False)) as executor:
        outputs = executor.run(DOCS[:5]).outputs
    assert [[int(page[0]) for page in pages] for pages in outputs] == [list(range(n)) for n in DOCS[:5]]
    assert set(sent.batches) == {1}
    assert max(sent.on_the_way) == 2


@pytest.mark.slow
@pytest.mark.parametrize("how", ["kill", "hang"])
def test_a_death_in_a_shared_call_blames_nobody_until_it_is_known_whom(
    how: str, sent: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "batches_per_call", lambda _: MOST_PER_CALL)
    module = RayModule(Poison).pre_init(110, how).ray_options(batch_size=2, replicas=2, slow_start=False, **CPU)
    module.ray_options(deadline_s=0.7 if how == "hang" else None)
    only_this_grain_is_late(monkeypatch, sum(DOCS[:4]) + 110)
    with Executor(Documents(module, total=False)) as executor:
        outcomes = sorted(executor.stream(DOCS[:5]), key=lambda outcome: outcome.index)
    for outcome, expected in zip(outcomes[:4], ANSWERS[:4], strict=True):
        assert outcome.value == expected
    broken = outcomes[4]
    assert broken.outcome is ItemOutcome.SUPPRESSED
    assert broken.cause is not None
    kind = CauseKind.WORKER_CRASH if how == "kill" else CauseKind.TIMEOUT
    assert (broken.cause.kind, broken.cause.ordinals) == (kind, (110,))
    assert [c.outcome for c in broken.children].count(ItemOutcome.PRESENT) == DOCS[4] - 1
    assert max(sent.batches) > 1


def test_an_exception_in_a_shared_call_ends_its_microbatch_and_nothing_else(
    sent: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "batches_per_call", lambda _: MOST_PER_CALL)
    module = RayModule(Poison).pre_init(1_801, "raise").ray_options(batch_size=4, slow_start=False, **CPU)
    with Executor(Flat(module)) as executor:
        for _ in range(3):
            with pytest.raises(ExecutionError, match="ValueError: poison 1801") as error:
                executor.run([min(value, 1_801) for value in range(2_400)])  # one batch of many that raise is told
            assert isinstance(error.value.__cause__, ValueError)
            assert any("in run" in note for note in error.value.__notes__)
        assert executor.run(list(range(1_000))).outputs == list(range(1, 1_001))
    assert max(sent.batches) > 1


def test_a_stream_closed_early_leaves_the_next_run_alone(sent: Sent) -> None:
    module = RayModule(AddOne).ray_options(batch_size=2, slow_start=False, **CPU)
    with Executor(Flat(module)) as executor:
        for _ in range(20):
            stream = executor.stream(list(range(600)), input_batch_size=60, max_active_input_batches=4)
            next(iter(stream))
            stream.close()
            assert executor.run(list(range(100))).outputs == list(range(1, 101))


@pytest.mark.usefixtures("short_batches")
def test_the_death_of_an_idle_actor_does_not_end_sharing(sent: Sent) -> None:
    module = RayModule(AddOne).ray_options(batch_size=2, **CPU)
    with Executor(Documents(module, total=False)) as executor:
        executor.run(DOCS)
        [old] = pids(executor, "middle")
        os.kill(old, signal.SIGKILL)
        wait_for(lambda: pids(executor, "middle") not in ([], [old]))
        before = len(sent.batches)
        assert executor.run(DOCS).outputs == ANSWERS
    assert max(sent.batches[before:]) > 1
