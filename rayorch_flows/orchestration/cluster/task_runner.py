"""The Ray task runner of the microbatch flow: it never owns Ray."""

from __future__ import annotations

from typing import Any, Self

from prefect_ray import RayTaskRunner

from rayorch_flows.orchestration.cluster import connection


class SharedRayTaskRunner(RayTaskRunner[Any]):
    """Uses the connection that its flow makes before the first task, and leaves Ray running when it ends.

    A plain RayTaskRunner that has to call ``ray.init`` shuts Ray down when its flow ends, under its siblings' feet;
    and it starts before the flow knows which cluster it is told to use.
    """

    def __init__(self) -> None:
        super().__init__(init_kwargs={"namespace": connection.NAMESPACE})

    def duplicate(self) -> Self:
        return type(self)()

    def __enter__(self) -> Self:
        super(RayTaskRunner, self).__enter__()
        return self
