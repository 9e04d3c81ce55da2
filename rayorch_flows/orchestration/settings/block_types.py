"""Our Block types, found as Prefect finds them, and registered with a server."""

from __future__ import annotations

import asyncio
import inspect
from importlib.metadata import entry_points
from types import ModuleType
from typing import Final

from prefect.blocks.core import Block
from prefect.client.orchestration import get_client

from rayorch_flows.errors import InfrastructureError

GROUP: Final = "prefect.collections"
NAME: Final = "rayorch_flows"


def register_block_types() -> list[str]:
    """Register or update every Block type of ours; return their slugs."""
    return asyncio.run(_register())


async def _register() -> list[str]:
    found: list[type[Block]] = [kind for _, kind in inspect.getmembers(_collection(), Block.is_block_class)]
    async with get_client() as client:
        for kind in found:
            await kind.aregister_type_and_schema(client=client)
    return sorted(kind.get_block_type_slug() for kind in found)


def _collection() -> ModuleType:
    for entry in entry_points(group=GROUP):
        if entry.name == NAME:
            return entry.load()
    raise InfrastructureError(
        "rayorch-flows runs here without being installed, so Prefect cannot find its Block types",
        next_step="pip install it into this environment",
    )
