"""Actor pools: one a module. Replicas start, load their Function, take dispatch batches, die and are replaced.

A replica is an actor whose first two calls are ``place`` (answered once the cluster gave it its resources) and
``load`` (answered once the Function is constructed). So a pool that cannot be placed and a Function that cannot be
constructed are told apart, and neither becomes a restart loop. Everything here runs on the engine's thread; what Ray
has to say arrives there through ``post``.
"""

from __future__ import annotations

import functools
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import cloudpickle
import ray
from ray.actor import ActorHandle

from rayorch_flows.errors import ExecutionError, InfrastructureError, RayorchFlowsError
from rayorch_flows.lineage.protocol import DispatchBatch
from rayorch_flows.program.plan import ModulePlan
from rayorch_flows.runtime import placement
from rayorch_flows.runtime.cost import MOST_PER_CALL, batches_per_call
from rayorch_flows.runtime.payloads.codec import holds_reference
from rayorch_flows.runtime.payloads.wire import CallSpec, Raised
from rayorch_flows.runtime.worker import Worker

_log = logging.getLogger(__name__)

_CONSTRUCT: Final = "construct it in a plain Python session with the same arguments"
_INSTALL: Final = "install it where the workers run, or send it along with a runtime_env"
MAX_LOAD_DEATHS: Final = 3
"""Actors of one pool that may die one after the other before their Function is constructed."""
TOO_LARGE_S: Final = 10.0
"""How long actors wait that ask for more than any node of the cluster has."""
_OURS: Final = frozenset({"max_restarts", "max_task_retries"})
_DEAD: Final = 4  # ActorTableData.DEAD

Post = Callable[[Callable[..., None], Any, Any], None]
"""``post(handler, subject, value)``: have the engine's thread call ``handler(subject, value)``."""


@dataclass(slots=True, eq=False)
class Flight:
    """An actor call on its way: the dispatch batches that it carries, in the order in which they are executed, and
    the blocks in the store that they read. ``objects`` are the references that its reply may fill."""

    batches: Sequence[DispatchBatch]
    replica: Replica
    blocks: Sequence[tuple[int, Any]]
    objects: Sequence[Any] = ()
    reply: Any = None

    def look_at_errors(self) -> None:
        """Read the error that all answers of the flight hold: Ray prints those that nobody has looked at."""
        for answer in (self.reply, *self.objects):
            try:
                ray.get(answer, timeout=0)
            except Exception:
                pass


@dataclass(slots=True, eq=False)
class Replica:
    """One actor. ``flights`` in the order in which it executes them; ``since`` when the first one began; ``holds`` how
    many dispatch batches it was given and has not answered, ``alone`` if that is one that must be alone; ``worked``
    after its first answer: many Functions take far longer for that than ever again."""

    pool: Pool
    handle: ActorHandle[Any]
    created: float
    placed: bool = False
    ready: bool = False
    gone: bool = False
    since: float = 0.0
    holds: int = 0
    alone: bool = False
    worked: bool = False
    pid: int = 0
    node: str = ""
    flights: deque[Flight] = field(default_factory=deque[Flight])
    methods: dict[int, Any] = field(default_factory=dict[int, Any])
    calls: list[Any] = field(default_factory=list[Any])

    def depart(self, flight: Flight) -> None:
        """The flight counts from here on, whatever becomes of its sending."""
        if not self.flights:
            self.since = time.monotonic()
        self.flights.append(flight)

    def send(
        self, flight: Flight, request: bytes, objects: Sequence[Any], slots: int, done: Callable[[Any], None]
    ) -> None:
        """Queue an actor call; ``done`` gets the reply or the error on a thread of Ray's."""
        method = self.methods.get(slots)
        if method is None:
            run: Any = self.handle.run
            method = self.methods[slots] = run.options(num_returns=1 + slots) if slots else run
        answer = method.remote(request, *objects)
        reply, flight.objects = (answer[0], answer[1:]) if slots else (answer, ())
        flight.reply = reply
        reply._on_completed(done)

    def full(self, given: int) -> bool:
        """Whether it has its calls in flight, with ``given`` batches that are still to be sent. One call waits behind
        the one that it executes, however small, and meanwhile the next one fills."""
        pool = self.pool
        return len(self.flights) * pool.per_call + given >= pool.room

    def give(self, batch: DispatchBatch) -> None:
        """The actor gets a batch, which is to be sent."""
        self._hold(self.holds + 1)
        self.alone = batch.alone

    def _hold(self, batches: int) -> None:
        del self.pool.holding[self.holds][self]
        self.holds = batches
        self.pool.holding[batches][self] = None

    def finish(self, flight: Flight) -> bool:
        """The flight has an answer; False if it was given up before."""
        if self.gone:
            return False
        try:
            self.flights.remove(flight)
        except ValueError:
            return False
        self._hold(self.holds - len(flight.batches))
        self.alone = False
        self.since = time.monotonic()
        return True


class Pool:
    """The replicas of one module. ``holding[n]`` are the live ones that hold n dispatch batches, in the order in which
    they came to. ``per_call``: how many batches an actor call may carry."""

    def __init__(
        self,
        module: ModulePlan,
        calls: tuple[CallSpec, ...],
        post: Post,
        *,
        placement_timeout_s: float,
    ) -> None:
        self.module = module
        self.deadline_s = module.options.deadline_s
        self.per_call = 1
        self.live: list[Replica] = []
        self.holding: list[dict[Replica, None]] = [{} for _ in range(module.options.max_in_flight * MOST_PER_CALL + 1)]
        self.failure: RayorchFlowsError | None = None
        self._calls = calls
        self._post = post
        self._placement_timeout_s = placement_timeout_s
        self._starting: list[Replica] = []
        self._blob: Any = None
        self._load_deaths = 0
        self._shares = True
        self._warned = False

    @property
    def started(self) -> bool:
        return bool(self.live or self._starting)

    @property
    def replicas(self) -> int:
        return len(self.live) + len(self._starting)

    def everyone(self) -> list[Replica]:
        return [*self.live, *self._starting]

    def start(self) -> None:
        """Bring the pool to its full number of replicas; a pool that failed before gets a fresh chance."""
        self.failure = None
        try:
            if self._blob is None:
                self._blob = ray.put(self._constructor())
            while self.replicas < self.module.options.replicas:
                self._starting.append(self._create())
        except ExecutionError as error:
            self._fail(error)
        except Exception as error:  # Ray refuses options in many ways, some with an AssertionError
            self._fail(
                InfrastructureError(
                    f"the actors of {self.module.name!r} cannot be created: {type(error).__name__}: {error}",
                    where=self._where(),
                    next_step="check the options given to ray_options",
                )
            )

    def _constructor(self) -> bytes:
        """What an actor makes its Function from."""
        module = self.module
        made = (module.function, module.args, dict(module.kwargs))
        data = cloudpickle.dumps(made, 5)
        if holds_reference(made, data):
            raise ExecutionError(
                f"the constructor arguments of {module.name!r} hold a ray.ObjectRef",
                where=self._where(),
                next_step="pass the value itself: it goes through the object store anyway",
            )
        return data

    def _create(self) -> Replica:
        options = {key: value for key, value in self.module.options.actor if key not in _OURS}
        # Ray's own record of every call costs a tenth of the throughput; the engine's metrics say more.
        options.setdefault("enable_task_events", False)
        actor: Any = ray.remote(Worker)
        handle = actor.options(max_restarts=0, **options).remote(self._calls)
        replica = Replica(self, handle, time.monotonic())
        place, load = handle.place.remote(), handle.load.remote(self._blob)
        replica.calls = [place, load]
        place._on_completed(functools.partial(self._post, self._on_placed, replica))
        load._on_completed(functools.partial(self._post, self._on_loaded, replica))
        return replica

    def _on_placed(self, replica: Replica, value: Any) -> None:
        if not replica.gone and not isinstance(value, BaseException):
            replica.placed = True
            replica.pid, replica.node = value

    def _on_loaded(self, replica: Replica, value: Any) -> None:
        if replica.gone:
            return
        replica.calls = []
        if value is None:
            self._starting.remove(replica)
            replica.ready = True
            replica.since = time.monotonic()
            self.live.append(replica)
            self.holding[0][replica] = None
            self._load_deaths = 0
        elif isinstance(value, Raised):
            error = ExecutionError(
                f"the Function of {self.module.name!r} cannot be constructed: {value.message}",
                where=self._where(),
                next_step=_INSTALL if value.message.startswith("ModuleNotFoundError") else _CONSTRUCT,
            )
            if value.traceback:
                error.add_note(value.traceback)
            self._fail(error)
        else:
            self._drop(replica)
            self._load_deaths += 1
            if self._load_deaths < MAX_LOAD_DEATHS:
                self._starting.append(self._create())
                return
            self._fail(
                ExecutionError(
                    f"{MAX_LOAD_DEATHS} actors of {self.module.name!r} died one after the other before their Function "
                    f"was constructed; the last one: {first_line(value)}",
                    where=self._where(),
                    next_step="look for a crash of native code or too little memory where the model is loaded",
                )
            )

    def _where(self) -> str:
        return str(self.module.where) if self.module.where else ""

    def _fail(self, error: RayorchFlowsError) -> None:
        if self.failure is None:
            self.failure = error
        for replica in self._starting[:]:
            self._drop(replica)

    def _drop(self, replica: Replica) -> None:
        replica.gone = True
        if replica in self._starting:
            self._starting.remove(replica)
        if replica in self.live:
            self.live.remove(replica)
            del self.holding[replica.holds][replica]
        replica.flights.clear()
        try:
            ray.kill(replica.handle, no_restart=True)
        except Exception as error:
            _log.debug("an actor of %s could not be killed: %s", self.module.name, error)

    @property
    def room(self) -> int:
        """How many dispatch batches an actor may hold."""
        return self.module.options.max_in_flight * self.per_call

    def learn(self, batch_s: float) -> None:
        """What a batch takes its actor: short ones share a call."""
        self.per_call = batches_per_call(batch_s) if self._shares else 1

    def share_no_more(self) -> None:
        """One of the batches that shared a call took it down: to find it, they go one by one until the pool stops."""
        self._shares, self.per_call = False, 1

    def lose(self, replica: Replica) -> list[Flight]:
        """The replica is dead or has to die: its unanswered flights, oldest first. A successor is started."""
        flights = list(replica.flights)
        self._drop(replica)
        if self.failure is None:
            self.start()
        return flights

    def dead(self) -> list[Replica]:
        """Ready replicas whose death Ray has already told this process."""
        return [replica for replica in self.live if is_dead(replica.handle)]

    def overdue(self, now: float) -> list[Replica]:
        """Replicas whose executing batch has exceeded the deadline."""
        if self.deadline_s is None:
            return []
        return [r for r in self.live if r.flights and now - r.since > self.deadline_s]

    def next_deadline(self) -> float | None:
        if self.deadline_s is None:
            return None
        return min((r.since + self.deadline_s for r in self.live if r.flights), default=None)

    def check_placement(self, now: float) -> None:
        """Fail if no replica got its resources in time; go on with fewer if some did.

        Resources that others use may become free; what is more than any node has will hardly come.
        """
        patience = self._placement_timeout_s
        waiting = [r for r in self._starting if not r.placed and now - r.created > patience]
        if not waiting and any(not r.placed and now - r.created > TOO_LARGE_S for r in self._starting):
            if placement.fits_a_node(self.module):
                return
            patience = TOO_LARGE_S
            waiting = [r for r in self._starting if not r.placed]
        if not waiting:
            return
        have, want = self.replicas - len(waiting), self.module.options.replicas
        if have:
            if not self._warned:
                self._warned = True
                _log.warning(
                    "%s", f"{self.module.name!r} runs with {have} of {want} replicas: {placement.shortage(self.module)}"
                )
            return
        self._fail(
            InfrastructureError(
                f"no actor of {self.module.name!r} could be placed within {patience:g} s: "
                f"{placement.shortage(self.module)}",
                where=self._where(),
                next_step="ask for less in ray_options, or give the cluster more",
            )
        )

    def stop(self) -> list[Flight]:
        """Kill every actor; the flights that were under way."""
        flights = [flight for replica in self.live for flight in replica.flights]
        for replica in [*self.live, *self._starting]:
            self._drop(replica)
        self._blob = None
        self._shares = True
        return flights


def is_dead(handle: ActorHandle[Any]) -> bool:
    """Whether this process has been told that the actor is dead; costs well under a microsecond."""
    try:
        worker: Any = ray._private.worker.global_worker  # pyright: ignore
        return int(worker.core_worker.get_local_actor_state(handle._actor_id)) == _DEAD  # pyright: ignore
    except Exception:
        return False


def first_line(error: Any) -> str:
    """The first line that says something of an error of Ray's."""
    for line in str(error).splitlines():
        if line.strip():
            return line.strip()
    return type(error).__name__
