"""The engine host's actor: it owns an engine, and holds the microbatches that were attached to it."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass, field, replace
from typing import Any, Final

import cloudpickle
import ray

from rayorch_flows.errors import InfrastructureError
from rayorch_flows.program.outcomes import Cause, ItemOutcome
from rayorch_flows.program.plan import Plan
from rayorch_flows.runtime.engine import MAX_RESTARTS, Engine
from rayorch_flows.runtime.host.messages import (
    FINAL_STATES,
    PAUSED,
    RUNNING,
    Attachment,
    HostOptions,
    MicrobatchProgress,
    MicrobatchSpec,
)
from rayorch_flows.runtime.host.writer import Writer
from rayorch_flows.runtime.metrics import RunTally
from rayorch_flows.runtime.submission import Submission

_KEPT: Final = 256
"""Microbatches that are over and still answer polls."""


@dataclass(slots=True, eq=False)
class _Held:
    """A microbatch of the host."""

    attempt: int
    rows: frozenset[int]
    submission: Submission
    writer: Writer
    started: float
    polled: float
    state: str = RUNNING
    error: Cause | None = None
    ended: float = 0.0
    redone: int = 0
    over: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def final(self) -> bool:
        return self.state in FINAL_STATES


class EngineHost:
    """The actor. Its methods only look things up; the engine and the writers have threads of their own."""

    def __init__(self, options: HostOptions, *plan: bytes) -> None:
        self._plan: Plan = cloudpickle.loads(b"".join(plan))
        self._options = options
        self._engine = Engine(self._plan, idle_s=options.idle_s, placement_timeout_s=options.placement_timeout_s)
        self._held: dict[str, _Held] = {}
        self._attempts: dict[str, int] = {}
        self._draining = False
        self._keeper: asyncio.Task[None] | None = None

    async def attach(self, spec: MicrobatchSpec) -> Attachment:
        if self._keeper is None:
            self._keeper = asyncio.get_running_loop().create_task(self._keep_leases())
        now = time.monotonic()
        held = self._held.get(spec.id)
        if held is not None and not held.final:
            if held.rows.issuperset(spec.rows):
                held.polled = now
                self._resume(spec.id, held)
                return Attachment(held.attempt, joined=True)
            self._engine.cancel(spec.id)  # it was planned anew, with other sources
            await self._until_final(held, 30.0)
        # An attempt that nobody waited for may have gone on after this one was planned.
        spec = await asyncio.to_thread(_without_done, spec)
        held = self._held.get(spec.id)
        if held is not None and not held.final:
            return Attachment(held.attempt, joined=True)  # somebody else was faster
        if self._draining:
            raise InfrastructureError(
                f"the engine host of {self._plan.name} is draining", next_step="connect again with the new plan"
            )
        attempt = self._attempts[spec.id] = self._attempts.get(spec.id, 0) + 1
        self._held.pop(spec.id, None)
        self._held[spec.id] = self._start(spec, attempt, now)
        self._forget_old()
        return Attachment(attempt, joined=False)

    async def poll(self, microbatch: str, timeout_s: float) -> MicrobatchProgress | None:
        held = self._held.get(microbatch)
        if held is None:
            return None
        held.polled = time.monotonic()
        self._resume(microbatch, held)
        await self._until_final(held, timeout_s)
        held.polled = time.monotonic()
        return _progress(self._plan, held)

    async def cancel(self, microbatch: str) -> bool:
        held = self._held.get(microbatch)
        if held is None or held.final:
            return False
        self._engine.cancel(microbatch)
        await self._until_final(held, 30.0)
        return True

    async def drain(self) -> None:
        self._draining = True
        self._engine.drain()
        if self._keeper is None:
            self._keeper = asyncio.get_running_loop().create_task(self._keep_leases())

    async def shutdown(self) -> None:
        active = [held for held in self._held.values() if not held.final]
        await asyncio.to_thread(self._engine.close)
        for held in active:
            await self._until_final(held, 10.0)

    async def describe(self) -> dict[str, Any]:
        return {
            "name": self._plan.name,
            "semantic_fingerprint": self._plan.semantic_fingerprint,
            "physical_fingerprint": self._plan.physical_fingerprint,
            "pid": os.getpid(),
            "node": os.uname().nodename,
            "draining": self._draining,
            "microbatches": {name: held.state for name, held in self._held.items()},
            "actors": self._engine.actors(),
        }

    def _start(self, spec: MicrobatchSpec, attempt: int, now: float) -> _Held:
        loop = asyncio.get_running_loop()

        def finished(state: str, cause: Cause | None) -> None:
            held.error = cause
            held.ended = time.monotonic()
            held.state = str(state)
            loop.call_soon_threadsafe(held.over.set)

        def redo(indices: list[int]) -> bool:
            held.redone += 1
            if held.redone > MAX_RESTARTS:
                return False
            positions = {row: position for position, row in enumerate(submission.indices)}
            self._engine.redo(submission, sorted(positions[index] for index in indices))
            return True

        writer = Writer(
            self._plan,
            spec.id,
            attempt,
            spec.sink,
            finished=finished,
            redo=redo,
            cancel=lambda: self._engine.cancel(spec.id),
        )
        submission = Submission(
            spec.id, spec.columns, list(spec.rows), writer, RunTally(self._plan, time.time()), attempt, watched=True
        )
        held = _Held(attempt, frozenset(spec.rows), submission, writer, now, now)
        self._engine.submit(submission)
        return held

    def _resume(self, microbatch: str, held: _Held) -> None:
        if held.state == PAUSED:
            held.state = RUNNING
            self._engine.pause(microbatch, False)

    async def _until_final(self, held: _Held, timeout_s: float) -> None:
        if timeout_s > 0 and not held.final:
            try:
                await asyncio.wait_for(held.over.wait(), timeout_s)
            except TimeoutError:
                pass

    async def _keep_leases(self) -> None:
        options = self._options
        period = max(0.05, min(1.0, options.lease_s / 4))
        while True:
            await asyncio.sleep(period)
            now = time.monotonic()
            for name, held in list(self._held.items()):
                if held.final:
                    continue
                if now - held.polled > options.evict_s:
                    self._engine.cancel(name)
                elif now - held.polled > options.lease_s and held.state == RUNNING:
                    held.state = PAUSED
                    self._engine.pause(name, True)
            if self._draining and all(held.final for held in self._held.values()):
                await asyncio.to_thread(self._engine.close)
                ray.kill(ray.get_runtime_context().current_actor, no_restart=True)

    def _forget_old(self) -> None:
        final = [name for name, held in self._held.items() if held.final]
        for name in final[: max(0, len(final) - _KEPT)]:
            del self._held[name]


def _without_done(spec: MicrobatchSpec) -> MicrobatchSpec:
    """The microbatch without the rows that its sink holds already."""
    done = frozenset(spec.sink.done(spec.id)) if spec.sink is not None else frozenset[int]()
    left = [position for position, row in enumerate(spec.rows) if row not in done]
    if len(left) == len(spec.rows):
        return spec
    columns = tuple([column[position] for position in left] for column in spec.columns)
    return replace(spec, columns=columns, rows=[spec.rows[position] for position in left])


def _progress(plan: Plan, held: _Held) -> MicrobatchProgress:
    counts, calls = held.writer.counts, held.submission.snapshot
    through: dict[str, int] = {}
    for call in calls:
        sealed = call.grains + call.suppressed + call.dropped
        through[call.domain] = min(sealed, through.get(call.domain, sealed))
    delivered = dict(counts.children)
    return MicrobatchProgress(
        state=held.state,
        attempt=held.attempt,
        error=held.error,
        sources_total=len(held.rows),
        sources_done=counts.done,
        sources_failed=counts.failed,
        outcomes={outcome.value: counts.outcomes[outcome] for outcome in ItemOutcome},
        children_done=sum(
            max(delivered.get(domain.name, 0), 0 if held.final else through.get(domain.name, 0))
            for domain in plan.domains[1:]
        ),
        children_failed=counts.children_failed,
        calls=calls,
        elapsed_s=(held.ended or time.monotonic()) - held.started,
        failures_sample=counts.sample,
        written=counts.written,
    )
