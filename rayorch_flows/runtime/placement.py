"""What the actors of a module ask of the cluster, and whether it can ever give it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import ray

from rayorch_flows.program.plan import ModulePlan

_AMOUNTS: Final = {"num_cpus": "CPU", "num_gpus": "GPU", "memory": "memory"}
_ASKED: Final = frozenset({*_AMOUNTS, "resources", "accelerator_type", "scheduling_strategy"})


def shortage(module: ModulePlan) -> str:
    """What each actor asks for and what the cluster has, in words."""
    asked = {key: value for key, value in module.options.actor if key in _ASKED} or {"num_cpus": 1}
    try:
        total, free = _plain(ray.cluster_resources()), _plain(ray.available_resources())
    except Exception as error:
        return f"each asks for {asked}; what the cluster has is unknown: {error}"
    return f"each asks for {asked}, the cluster has {total} of which {free} are free"


def fits_a_node(module: ModulePlan) -> bool:
    """Whether one of the nodes would be large enough for an actor if nobody else used it."""
    options = dict(module.options.actor)
    asked: dict[str, float] = {_AMOUNTS[key]: options[key] for key in _AMOUNTS if options.get(key)}
    asked |= options.get("resources") or {}
    try:
        nodes: list[Mapping[str, Any]] = ray.nodes()
    except Exception:
        return True  # nobody knows, so it is not too large
    return any(
        all(node["Resources"].get(name, 0.0) >= amount for name, amount in asked.items())
        for node in nodes
        if node["Alive"]
    )


def _plain(resources: Mapping[str, float]) -> dict[str, float]:
    return {key: value for key, value in sorted(resources.items()) if not key.startswith(("node:", "object_store"))}
