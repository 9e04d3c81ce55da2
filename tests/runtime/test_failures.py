"""Actors that die, hang or cannot start; exceptions under every recovery policy."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from rayorch_flows import (
    CauseKind,
    ExecutionError,
    Executor,
    InfrastructureError,
    ItemOutcome,
    OutputIssue,
    RayModule,
    RecoveryPolicy,
    SourceOutcome,
)
from rayorch_flows.runtime import engine as engine_module
from rayorch_flows.runtime import pool as pool_module
from rayorch_flows.runtime.engine import Engine
from rayorch_flows.runtime.pool import MAX_LOAD_DEATHS, Pool, Replica
from rayorch_flows.runtime.traffic import Traffic
from tests.runtime.functions import CPU, BadInit, DiesInInit, Documents, Flat, Poison, Slow, wait_for

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]


@pytest.fixture(autouse=True)
def validated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYORCH_FLOWS_VALIDATE", "1")


def pids(executor: Executor, module: str) -> list[int]:
    actors = executor._engine.actors()  # pyright: ignore[reportPrivateUsage]
    return [actor["pid"] for actor in actors if actor["module"] == module and actor["ready"]]


def only_this_grain_is_late(monkeypatch: pytest.MonkeyPatch, grain: int) -> None:
    """No deadline passes but for a call that holds this Grain: on a slow machine others may take as long as they do."""
    overdue = Pool.overdue

    def those_that_hold_it(self: Pool, now: float) -> list[Replica]:
        return [
            replica
            for replica in overdue(self, now)
            if any(grain in segment.grains for batch in replica.flights[0].batches for segment in batch.segments)
        ]

    monkeypatch.setattr(Pool, "overdue", those_that_hold_it)


@pytest.mark.slow
def test_killed_actors_lose_and_double_nothing() -> None:
    module = RayModule(Slow).pre_init(0.02).ray_options(batch_size=4, replicas=2, **CPU)
    module.ray_options(recovery=RecoveryPolicy.abort(infra_retries=6))  # more than are killed: none is isolated
    with Executor(Documents(module, total=False)) as executor:
        killed: list[int] = []
        docs = [20, 5, 0, 80, 33, 7] * 6
        outcomes: list[SourceOutcome] = []
        for outcome in executor.stream(docs, input_batch_size=5, max_active_input_batches=3):
            outcomes.append(outcome)
            if len(outcomes) % 5 == 1 and len(killed) < 5:  # no more than three of eight microbatches are active
                wait_for(lambda: set(pids(executor, "middle")) - set(killed))
                killed.append(next(pid for pid in pids(executor, "middle") if pid not in killed))
                with contextlib.suppress(ProcessLookupError):
                    os.kill(killed[-1], signal.SIGKILL)
        assert len(killed) == 5
        assert sorted(outcome.index for outcome in outcomes) == list(range(len(docs)))
        for outcome in outcomes:
            assert outcome.value == list(range(1, docs[outcome.index] + 1)), outcome


def test_an_idle_actor_that_died_is_replaced_and_nobody_is_blamed() -> None:
    module = RayModule(Slow).ray_options(batch_size=4, recovery=RecoveryPolicy.abort(infra_retries=0), **CPU)
    with Executor(Flat(module)) as executor:
        executor.run([1])
        [old] = pids(executor, "module")
        os.kill(old, signal.SIGKILL)
        wait_for(lambda: pids(executor, "module") not in ([], [old]))
        assert executor.run([1, 2, 3]).outputs == [2, 3, 4]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["kill", "hang"])
def test_a_grain_that_takes_its_actor_down_is_isolated_and_named(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    only_this_grain_is_late(monkeypatch, 3 + 3)  # page 3 of the second document, behind three of the first
    module = (
        RayModule(Poison)
        .pre_init(3, how)
        .ray_options(batch_size=4, replicas=2, deadline_s=0.7 if how == "hang" else None, **CPU)
    )
    with Executor(Documents(module, total=False)) as executor:
        short, broken, long = sorted(executor.stream([3, 6, 3]), key=lambda outcome: outcome.index)
        assert short.value == long.value == [1, 2, 3]
        assert broken.outcome is ItemOutcome.SUPPRESSED
        assert broken.cause is not None
        assert broken.cause.kind is (CauseKind.WORKER_CRASH if how == "kill" else CauseKind.TIMEOUT)
        assert broken.cause.ordinals == (3,)
        assert broken.cause.call == "middle"
        assert broken.cause.retryable
        assert ("died" if how == "kill" else "deadline of 0.7 s") in broken.cause.message
        present = [child.outcome for child in broken.children]
        assert present.count(ItemOutcome.PRESENT) == 5


@pytest.mark.parametrize("how", ["raise", "unpicklable", "exit"])
def test_isolation_of_an_exception(how: str) -> None:
    module = RayModule(Poison).pre_init(5, how).ray_options(batch_size=8, recovery=RecoveryPolicy.isolate_tail(), **CPU)
    with Executor(Flat(module)) as executor:
        result = executor.run(list(range(8)))
    text = {"raise": "ValueError: poison 5", "unpicklable": "Unpicklable: unpicklable 5", "exit": "SystemExit: 3"}[how]
    assert result.outputs == [OutputIssue(ItemOutcome.FAILED, text) if value == 5 else value + 1 for value in range(8)]
    assert result.calls[0].retries > 0


@pytest.mark.parametrize("mode", ["retry_batch", "retry_tail"])
def test_retries(mode: str, tmp_path: Path) -> None:
    policy = getattr(RecoveryPolicy, mode)(max_retries=1)
    options: dict[str, Any] = {"batch_size": 4, "recovery": policy, **CPU}
    once = RayModule(Poison).pre_init(2, "raise", str(tmp_path / "once")).ray_options(**options)
    with Executor(Flat(once)) as executor:
        result = executor.run([1, 2, 3])
        assert result.outputs == [2, 3, 4]
        assert result.calls[0].retries >= 1
    always = RayModule(Poison).pre_init(2, "raise").ray_options(**options)
    with Executor(Flat(always)) as executor, pytest.raises(ExecutionError, match="ValueError: poison 2"):
        executor.run([1, 2, 3])


def test_an_exception_that_cannot_be_pickled_aborts_as_text() -> None:
    module = RayModule(Poison).pre_init(1, "unpicklable").ray_options(**CPU)
    with Executor(Flat(module)) as executor, pytest.raises(ExecutionError, match="Unpicklable: unpicklable 1"):
        executor.run([1])


@pytest.mark.parametrize(
    ("function", "told", "actors"), [(BadInit, "ValueError: no such model", 1), (DiesInInit, "died", MAX_LOAD_DEATHS)]
)
def test_a_constructor_that_fails_is_one_clear_error(function: Any, told: str, actors: int, tmp_path: Path) -> None:
    with Executor(Flat(RayModule(function).pre_init(str(tmp_path)).ray_options(**CPU))) as executor:
        for _ in range(2):
            with pytest.raises(ExecutionError) as error:
                executor.run([1])
            assert "'module'" in str(error.value)
            assert told in str(error.value)
        assert executor._engine.actors() == []  # pyright: ignore[reportPrivateUsage]  # none is tried again
        # One more start than runs: the first one began with the Executor, and may be over before there is a run.
        assert len(list(tmp_path.iterdir())) <= 3 * actors


@pytest.mark.parametrize(
    ("options", "asked"), [({"num_gpus": 3}, "'num_gpus': 3"), ({"resources": {"tpu": 1}}, "{'tpu': 1}")]
)
def test_actors_larger_than_any_node_are_told_before_those_that_may_find_room(
    options: dict[str, Any], asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "TOO_LARGE_S", 1.0)
    with (
        Executor(Flat(RayModule(Slow).ray_options(**options))) as executor,
        pytest.raises(InfrastructureError) as error,
    ):
        executor.run([1])
    assert "within 1 s" in str(error.value)
    assert asked in str(error.value)
    assert "'CPU': 8.0" in str(error.value)


def test_actors_that_find_no_room_are_told_at_last(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Engine.__init__

    def hurried(self: Engine, plan: Any, **kwargs: Any) -> None:
        kwargs["placement_timeout_s"] = 2.0
        made(self, plan, **kwargs)

    with Executor(Flat(RayModule(Slow).pre_init(0.0).ray_options(num_cpus=8))) as everything:
        assert len(everything.run([1]).outputs) == 1
        monkeypatch.setattr(pool_module, "TOO_LARGE_S", 0.5)
        monkeypatch.setattr(engine_module.Engine, "__init__", hurried)
        too_late = Executor(Flat(RayModule(Slow).ray_options(num_cpus=8)))
        with too_late, pytest.raises(InfrastructureError, match="within 2 s"):
            too_late.run([1])


@pytest.fixture
def lost_objects(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every payload goes to the object store and the first one is lost when it is needed."""
    from rayorch_flows.runtime.payloads import blocks

    monkeypatch.setattr(blocks.SlotPolicy, "slots", lambda self: self._streams)
    send = Replica.send
    lost: list[bool] = []

    def losing(self: Replica, flight: Any, request: bytes, objects: Any, slots: int, done: Any) -> None:
        if self.pool.module.name == "middle" and len(lost) < 2:
            lost.append(True)

            def instead(_: Any) -> None:
                done(ray.exceptions.ObjectLostError(ray.put(1).hex(), None, ""))

            send(self, flight, request, objects, slots, instead)
        else:
            send(self, flight, request, objects, slots, done)

    monkeypatch.setattr(Replica, "send", losing)
    yield
    assert lost


@pytest.mark.usefixtures("lost_objects")
def test_lost_payloads_restart_the_microbatches_that_read_them() -> None:
    pipeline = Documents(RayModule(Slow).pre_init(0.01).ray_options(batch_size=2, **CPU))
    with Executor(pipeline) as executor:
        docs = [5, 3, 0, 4]
        assert executor.run(docs, input_batch_size=2, max_active_input_batches=2).outputs == [15, 6, 0, 10]


def test_a_defect_of_the_engine_is_answered_and_the_executor_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    with Executor(Flat(RayModule(Slow).ray_options(**CPU))) as executor:
        assert executor.run([1]).outputs == [2]
        monkeypatch.setattr(Traffic, "dispatch", lambda self: 1 / 0)
        for _ in range(4):
            with pytest.raises(InfrastructureError, match="the engine failed: ZeroDivisionError"):
                executor.run([1])


def test_what_is_behind_a_message_that_fails_is_handled() -> None:
    with Executor(Flat(RayModule(Slow).ray_options(**CPU))) as executor:
        engine = executor._engine  # pyright: ignore[reportPrivateUsage]
        handled = threading.Event()

        def fail(_: None, __: None) -> None:
            raise AssertionError("a defect")

        def note(_: None, __: None) -> None:
            handled.set()

        def both(_: None, __: None) -> None:
            engine._taken.extend([(fail, None, None), (note, None, None)])  # pyright: ignore[reportPrivateUsage]

        engine._post(both, None, None)  # pyright: ignore[reportPrivateUsage]
        assert handled.wait(120)
        assert executor.run([1]).outputs == [2]


def test_whatever_ray_raises_about_an_actors_options_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: Any) -> Any:
        raise AssertionError("no such group")

    monkeypatch.setattr(Pool, "_create", refused)
    with (
        Executor(Flat(RayModule(Slow).ray_options(**CPU))) as executor,
        pytest.raises(InfrastructureError, match="cannot be created: AssertionError: no such group"),
    ):
        executor.run([1])
