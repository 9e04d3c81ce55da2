"""The engine host: a detached named actor that owns an engine, and the client that talks to it.

One host for each namespace and physical fingerprint, so that flow runs that come and go share warm actors. Microbatches
are attached under an id: whoever attaches one that is running joins it. Polls are heartbeats; a microbatch that nobody
polls is paused and at last evicted. If its process dies, Ray starts the host again with nothing in it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import cloudpickle
import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

from rayorch_flows.errors import InfrastructureError
from rayorch_flows.program.plan import Plan
from rayorch_flows.runtime.host.actor import EngineHost
from rayorch_flows.runtime.host.messages import (
    FINAL_STATES,
    Attachment,
    HostOptions,
    MicrobatchProgress,
    MicrobatchSpec,
    UnknownMicrobatchError,
)
from rayorch_flows.runtime.host.writer import Sink

NAME_PREFIX: Final = "rayorch-flows-"
_CHUNK: Final = 90_000  # Ray keeps smaller arguments inside the actor's description, which outlives its creator
_INLINE_LIMIT: Final = 9_000_000
_RESTART_S: Final = 60.0


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
                if "creation task" in str(error):
                    raise InfrastructureError(
                        f"the engine host {self.name} cannot be made: {error}",
                        next_step="see that its runtime_env holds the modules of the Pipeline's Functions",
                    ) from error
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
    "FINAL_STATES",
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
