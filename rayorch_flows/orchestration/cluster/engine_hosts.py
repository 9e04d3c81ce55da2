"""The engine hosts of a cluster: what they hold, and how to end them."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any, Final

from pydantic import BaseModel, Field

from rayorch_flows.command import typed
from rayorch_flows.errors import InfrastructureError, UsageError
from rayorch_flows.orchestration.cluster import connection
from rayorch_flows.orchestration.settings.home import given_ray_address, home
from rayorch_flows.orchestration.settings.places import ClusterPlace
from rayorch_flows.runtime.host.messages import PAUSED, RUNNING

ANSWER_S: Final = 10.0


class HostView(BaseModel):
    """One engine host. ``microbatches`` are the ones it holds, by their state; ``actors`` the live ones by module."""

    host: str
    pipeline: str = ""
    physical_fingerprint: str = ""
    semantic_fingerprint: str = ""
    node: str = ""
    pid: int = 0
    draining: bool = False
    answers: bool = True
    microbatches: dict[str, str] = Field(default_factory=dict[str, str])
    actors: dict[str, int] = Field(default_factory=dict[str, int])

    @property
    def active(self) -> list[str]:
        return [name for name, state in self.microbatches.items() if state in (RUNNING, PAUSED)]

    @property
    def paused(self) -> list[str]:
        """Those that nobody polls any more."""
        return [name for name, state in self.microbatches.items() if state == PAUSED]


def connect_to_running(place: ClusterPlace | None = None) -> None:
    """Connect to the given cluster, or to the embedded one of a command that runs now."""
    if place is None and given_ray_address() is None:
        address = connection.embedded_address(home())
        if address is None:
            raise InfrastructureError(
                "no cluster is running",
                next_step="give --cluster or RAY_ADDRESS; an embedded cluster is there only while an ingest runs",
            )
        os.environ["RAY_ADDRESS"] = address
    connection.connect(home(), place)


def hosts() -> list[HostView]:
    """All engine hosts of the connected cluster."""
    from rayorch_flows.runtime.host import client as host

    return [_view(name) for name in host.list_hosts(connection.namespace())]


def drain(name: str) -> None:
    """Take no new microbatch; the host ends when those it has are done."""
    import ray

    ray.get(actor(name).drain.remote(), timeout=ANSWER_S)


def stop(name: str) -> None:
    """Cancel what the host runs and end it; what is staged is kept."""
    import ray

    handle = actor(name)
    try:
        ray.get(handle.shutdown.remote(), timeout=60)
    except Exception:
        pass  # it is killed in any case
    ray.kill(handle, no_restart=True)


def drain_predecessors(pipeline: str, physical_fingerprint: str) -> list[str]:
    """Drain hosts of the same Pipeline in an earlier form that hold no work, so that they give their actors back."""
    old = [
        view.host
        for view in hosts()
        if view.answers
        and view.pipeline == pipeline
        and view.physical_fingerprint != physical_fingerprint
        and not view.draining
        and not view.active
    ]
    for name in old:
        drain(name)
    return old


def hosts_text(views: list[HostView]) -> str:
    """For a terminal."""
    if not views:
        return "No engine host is running."
    lines: list[str] = []
    for view in views:
        state = "does not answer" if not view.answers else "draining" if view.draining else "running"
        lines.append(f"{view.host}  {view.pipeline}  {state}  {view.node} pid {view.pid}")
        actors = ", ".join(f"{name} {count}" for name, count in view.actors.items()) or "none"
        lines.append(f"  actors        {actors}")
        shown = ", ".join(f"{each[:10]} {view.microbatches[each]}" for each in view.active) or "none"
        lines.append(f"  microbatches  {shown}")
    return "\n".join(lines)


def _view(name: str) -> HostView:
    import ray

    try:
        found: dict[str, Any] = ray.get(actor(name).describe.remote(), timeout=ANSWER_S)
    except Exception:
        return HostView(host=name, answers=False)
    actors = Counter(str(actor["module"]) for actor in found.get("actors", []))
    return HostView.model_validate(found | {"host": name, "pipeline": found.get("name", ""), "actors": actors})


def actor(name: str) -> Any:
    """The host's actor."""
    import ray

    try:
        return ray.get_actor(name, namespace=connection.namespace())
    except ValueError:
        raise UsageError(f"there is no engine host {name!r}", next_step=typed("engines lists them")) from None
