"""The block that says which Ray cluster to use."""

from __future__ import annotations

from typing import Any

from prefect.blocks.core import Block
from pydantic import Field, SecretStr

from rayorch_flows.blocks.base import STRICT
from rayorch_flows.orchestration.settings import places
from rayorch_flows.orchestration.settings.places import ClusterPlace


class RayCluster(Block):
    """A Ray cluster that runs already, and the token that opens it.

    Give it to a flow as `cluster: ray-cluster/BLOCK_NAME`; it replaces `RAY_ADDRESS`.

    Example:
        Load it and look at what it names:
        ```python
        from rayorch_flows.blocks import RayCluster

        cluster = RayCluster.load("BLOCK_NAME")
        print(cluster.address)
        ```
    """

    model_config = STRICT

    _block_type_name = "Ray Cluster"
    _block_type_slug = places.RAY_CLUSTER

    address: str = Field(
        min_length=1,
        title="Address",
        description="host:port on a machine of the cluster, ray://host:port from outside of it.",
        examples=["ray-head:6379", "ray://ray-head:10001"],
    )
    namespace: str = Field(
        default="",
        title="Namespace",
        description="Where the engine hosts live; runs in one namespace share them. Empty stands for rayorch-flows.",
        examples=["books"],
    )
    runtime_env: dict[str, Any] = Field(
        default_factory=dict[str, Any],
        title="Runtime environment",
        description="What workers need and the cluster does not have, as Ray's runtime_env. Ray shows it in its "
        "dashboard and logs: no secrets here.",
        examples=[{"pip": ["rayorch-flows==0.1.0"], "env_vars": {"OMP_NUM_THREADS": "1"}}],
    )
    token: SecretStr = Field(
        default=SecretStr(""),
        title="Token",
        description="The cluster's authentication token, if it asks for one.",
        examples=["1f0c..."],
    )

    def place(self) -> ClusterPlace:
        """The contents, with the token in the clear."""
        return ClusterPlace(self.address, self.namespace, self.runtime_env, self.token.get_secret_value())
