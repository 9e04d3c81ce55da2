"""The engine host: a detached named actor that owns an engine, and the client that talks to it.

One host for each namespace and physical fingerprint, so that flow runs that come and go share warm actors. Microbatches
are attached under an id: whoever attaches one that is running joins it. Polls are heartbeats; a microbatch that nobody
polls is paused and at last evicted. If its process dies, Ray starts the host again with nothing in it.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import cloudpickle
import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

from rayorch_flows.errors import InfrastructureError
from rayorch_flows.program.outcomes import Cause, ItemOutcome
from rayorch_flows.program.plan import Plan
from rayorch_flows.runtime.engine import MAX_RESTARTS, PLACEMENT_TIMEOUT_S, Engine
from rayorch_flows.runtime.metrics import CallMetrics, RunTally
from rayorch_flows.runtime.submission import Submission
from rayorch_flows.runtime.writer import Sink, Writer

NAME_PREFIX: Final = "rayorch-flows-"
RUNNING, PAUSED, DONE, ABORTED, CANCELLED = "running", "paused", "done", "aborted", "cancelled"
FINAL_STATES: Final = frozenset({DONE, ABORTED, CANCELLED})
_KEPT: Final = 256
_CHUNK: Final = 90_000  # Ray keeps smaller arguments inside the actor's description, which outlives its creator
_INLINE_LIMIT: Final = 9_000_000
_RESTART_S: Final = 60.0


class UnknownMicrobatchError(InfrastructureError):
    """The host does not know the microbatch: never attached, evicted long ago, or the host was restarted."""


@dataclass(frozen=True, slots=True)
class HostOptions:
    """Times in seconds: without a poll for ``lease_s`` a microbatch is paused, after ``evict_s`` cancelled; actors are
    given back when nothing was active for ``idle_s``."""

    lease_s: float = 30.0
    evict_s: float = 300.0
    idle_s: float = 300.0
    placement_timeout_s: float = PLACEMENT_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class MicrobatchSpec:
    """A microbatch to attach. ``rows`` are the original indices of the column entries; outcomes carry them."""

    id: str
    columns: tuple[list[Any], ...]
    rows: list[int]
    sink: Sink | None = None


@dataclass(frozen=True, slots=True)
class Attachment:
    """The attempt that the microbatch is in; ``joined`` if it was running already."""

    attempt: int
    joined: bool


@dataclass(frozen=True, slots=True)
class MicrobatchProgress:
    """How far one attempt of a microbatch is. ``state`` is done only when everything is written."""

    state: str
    attempt: int
    error: Cause | None
    sources_total: int
    sources_done: int
    sources_failed: int
    outcomes: dict[str, int]
    children_done: int
    children_failed: int
    calls: tuple[CallMetrics, ...]
    elapsed_s: float
    failures_sample: tuple[tuple[int, Cause], ...]
    written: int


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


class HostClient:
    """Talks to the host of one Plan; every process may have its own. While the host restarts, calls wait."""

    def __init__(self, plan: Plan, *, namespace: str, runtime_env: dict[str, Any] | None, options: HostOptions) -> None:
        self.name = host_name(plan)
        self.namespace = namespace
        self._plan = plan
        self._runtime_env = runtime_env
        self._options = options
        self._handle = self._find()

    def attach(self, spec: MicrobatchSpec) -> Attachment:
        """Start the microbatch, join it if it runs already, or start a new attempt of one that is over."""
        return self._call(lambda host: host.attach.remote(spec))

    def poll(self, microbatch: str, timeout_s: float = 1.0) -> MicrobatchProgress:
        """Progress; returns at once when the microbatch is over, else after ``timeout_s``. This is the heartbeat."""
        progress = self._call(lambda host: host.poll.remote(microbatch, timeout_s), timeout_s)
        if progress is None:
            raise UnknownMicrobatchError(
                f"the engine host {self.name} does not know microbatch {microbatch}: it was restarted or forgot it",
                next_step="attach it again; what is staged is not done again",
            )
        return progress

    def cancel(self, microbatch: str) -> bool:
        """Cancel, and wait until it is over; False if it was not running."""
        return self._call(lambda host: host.cancel.remote(microbatch))

    def drain(self) -> None:
        """Take no new microbatch, give actors back as soon as they are not needed, end when all is done."""
        self._call(lambda host: host.drain.remote())

    def stop(self) -> None:
        """Cancel everything and end the host and its actors."""
        try:
            ray.get(self._handle.shutdown.remote(), timeout=60)
        except Exception:
            pass  # it is killed in any case
        ray.kill(self._handle, no_restart=True)

    def describe(self) -> dict[str, Any]:
        """What the host is and holds: fingerprints, process, microbatches, actors."""
        return self._call(lambda host: host.describe.remote())

    def _find(self) -> Any:
        if not ray.is_initialized():
            raise InfrastructureError("this process is not connected to Ray", next_step="connect to a cluster first")
        data = cloudpickle.dumps(self._plan, 5)
        if len(data) > _INLINE_LIMIT:
            raise InfrastructureError(
                f"the plan of {self._plan.name} is {len(data):,} bytes pickled, too much for an engine host",
                next_step="load models and other large objects in __init__ of the Function, from a path",
            )
        chunks = [data[start : start + _CHUNK] for start in range(0, len(data), _CHUNK)]
        options: dict[str, Any] = {"runtime_env": self._runtime_env} if self._runtime_env else {}
        actor: Any = ray.remote(EngineHost)
        return actor.options(
            name=self.name,
            namespace=self.namespace,
            lifetime="detached",
            get_if_exists=True,
            max_restarts=-1,
            max_concurrency=1000,
            num_cpus=0,
            **options,
        ).remote(self._options, *chunks)

    def _call(self, send: Callable[[Any], Any], extra_s: float = 0.0) -> Any:
        """One call of the host; waits while it restarts."""
        until = time.monotonic() + _RESTART_S + extra_s
        while True:
            try:
                return ray.get(send(self._handle), timeout=max(1.0, until - time.monotonic()))
            except RayTaskError as error:
                cause = getattr(error, "cause", None)
                raise cause if isinstance(cause, InfrastructureError) else error from None
            except (RayActorError, GetTimeoutError) as error:
                if time.monotonic() >= until:
                    raise InfrastructureError(
                        f"the engine host {self.name} does not answer: {error}",
                        next_step="look at the actor in the Ray dashboard, then run it again",
                    ) from error
                time.sleep(0.2)
                self._handle = self._find()


def host_name(plan: Plan) -> str:
    return NAME_PREFIX + plan.physical_fingerprint[:16]


def connect(
    plan: Plan,
    *,
    namespace: str,
    runtime_env: dict[str, Any] | None = None,
    options: HostOptions | None = None,
) -> HostClient:
    """The client of the engine host of ``plan``, which is started if there is none. Safe from many processes at once.

    ``options`` and ``runtime_env`` count for whoever starts it.
    """
    return HostClient(plan, namespace=namespace, runtime_env=runtime_env, options=options or HostOptions())


def list_hosts(namespace: str) -> list[str]:
    """The names of the engine hosts in a namespace, draining ones included."""
    named: list[Any] = ray.util.list_named_actors(all_namespaces=True)
    return sorted(
        str(actor["name"])
        for actor in named
        if actor["namespace"] == namespace and str(actor["name"]).startswith(NAME_PREFIX)
    )


__all__ = [
    "Attachment",
    "HostClient",
    "HostOptions",
    "MicrobatchProgress",
    "MicrobatchSpec",
    "Sink",
    "UnknownMicrobatchError",
    "connect",
    "host_name",
    "list_hosts",
]
