"""The Ray task runner of the microbatch flow: it never owns Ray."""

from __future__ import annotations

from typing import Any, Self

from prefect_ray import RayTaskRunner

from rayorch_flows.orchestration import cluster
from rayorch_flows.orchestration.settings import home


class SharedRayTaskRunner(RayTaskRunner[Any]):
    """Connects the process to Ray before it starts, if nobody has yet, and leaves Ray running when it ends.

    A plain RayTaskRunner that has to call ``ray.init`` shuts Ray down when its flow ends, under its siblings' feet.
    """

    def __init__(self) -> None:
        super().__init__(init_kwargs={"namespace": cluster.NAMESPACE})

    def duplicate(self) -> Self:
        return type(self)()

    def __enter__(self) -> Self:
        cluster.connect(home())
        cluster.restore_sigterm()
        return super().__enter__()
