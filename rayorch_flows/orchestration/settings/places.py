"""Where a run reads, writes and computes: values of flow parameters, given plainly or by the name of a Prefect block.

A parameter that names a block is spelt as everywhere in Prefect, ``BLOCK-TYPE/NAME``: ``corpus-source/nightly``. Only
that name stands in parameters and goes from flow to flow; each flow run loads the block again where it needs it, so
secrets stay in memory, and a changed block counts from the next run on. The Block types themselves lie in ``blocks``,
which Prefect finds by its entry point ``prefect.collections``; here is what they have to answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

from pydantic import ValidationError

from rayorch_flows.errors import InfrastructureError, UsageError
from rayorch_flows.orchestration.settings.call_settings import CallSettings

CORPUS_SOURCE: Final = "corpus-source"
RECORD_TABLE: Final = "record-table"
RAY_CLUSTER: Final = "ray-cluster"
ENGINE_SETTINGS: Final = "engine-settings"
_REFERENCE: Final = re.compile(rf"({CORPUS_SOURCE}|{RECORD_TABLE}|{RAY_CLUSTER}|{ENGINE_SETTINGS})/([^/]+)")


@dataclass(frozen=True, slots=True)
class SourcePlace:
    """A source; without ``patterns`` the flow's own count. ``options`` are fsspec's."""

    uri: str
    patterns: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)


@dataclass(frozen=True, slots=True)
class TablePlace:
    """A record table. ``options`` are deltalake's."""

    uri: str
    options: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)


@dataclass(frozen=True, slots=True)
class ClusterPlace:
    """A Ray cluster; an empty ``namespace`` is the usual one, an empty ``token`` the environment's."""

    address: str
    namespace: str = ""
    runtime_env: Mapping[str, Any] = field(default_factory=dict[str, Any])
    token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Tuning:
    """Other settings for Calls, by the name of the Call."""

    calls: Mapping[str, CallSettings] = field(default_factory=dict[str, CallSettings])

    def options(self) -> dict[str, dict[str, Any]]:
        """What ``tuned`` takes."""
        return {name: settings.options() for name, settings in self.calls.items()}


Place = TypeVar("Place", SourcePlace, TablePlace, ClusterPlace, Tuning)


@runtime_checkable
class PlaceBlock(Protocol):
    """What a block of ours can do."""

    def place(self) -> SourcePlace | TablePlace | ClusterPlace | Tuning:
        """The block's contents, secrets in the clear."""
        ...


async def source_place(value: str) -> SourcePlace:
    """A folder, a glob, a file, a URI, or ``corpus-source/NAME``."""
    return await _loaded(value, CORPUS_SOURCE, SourcePlace) or SourcePlace(value)


async def table_place(value: str) -> TablePlace:
    """A folder, a URI, or ``record-table/NAME``."""
    return await _loaded(value, RECORD_TABLE, TablePlace) or TablePlace(value)


async def cluster_place(value: str | None) -> ClusterPlace | None:
    """An address, or ``ray-cluster/NAME``; None stands for the environment's cluster, or an embedded one."""
    if not value:
        return None
    return await _loaded(value, RAY_CLUSTER, ClusterPlace) or ClusterPlace(value)


async def tuning(value: str | Mapping[str, CallSettings] | None) -> Tuning:
    """Settings by Call, or ``engine-settings/NAME``."""
    if not isinstance(value, str):
        return Tuning(value or {})
    found = await _loaded(value, ENGINE_SETTINGS, Tuning)
    if found is None:
        raise UsageError(
            f"engine settings are given by Call, or as {ENGINE_SETTINGS}/NAME, not as {value!r}",
            next_step='for example {"ocr": {"replicas": 8}}',
        )
    return found


@dataclass(frozen=True, slots=True)
class Places:
    """All that a run is told about its surroundings."""

    table: TablePlace
    source: SourcePlace
    cluster: ClusterPlace | None
    tuning: Tuning


async def find_places(
    table: str, source: str, cluster: str | None, engine: str | Mapping[str, CallSettings] | None
) -> Places:
    """What the parameters of a flow stand for."""
    return Places(
        await table_place(table), await source_place(source), await cluster_place(cluster), await tuning(engine)
    )


def is_block(value: object) -> bool:
    """Whether a parameter names a block of ours."""
    return isinstance(value, str) and _REFERENCE.fullmatch(value) is not None


async def _loaded(value: str, slug: str, kind: type[Place]) -> Place | None:
    """What the block says that ``value`` names; None if it names none."""
    named = _REFERENCE.fullmatch(value)
    if named is None:
        return None
    if named[1] != slug:
        raise UsageError(f"{value!r} is a block of another kind", next_step=f"give {slug}/NAME, or a plain value")
    from prefect.blocks.core import Block, UnknownBlockType
    from prefect.exceptions import ObjectNotFound

    try:
        block: object = await Block.aload(value)
    except UnknownBlockType:
        raise InfrastructureError(
            f"the Block type of {value} is not known here",
            next_step="install rayorch-flows in this environment: its blocks are found by their entry point",
        ) from None
    except (ValidationError, RuntimeError) as error:
        raise UsageError(
            f"the block {value} does not hold together: {_complaints(error)}", next_step="mend it in the Prefect UI"
        ) from None
    except (ValueError, ObjectNotFound):
        raise UsageError(
            f"there is no block {value}",
            next_step=f"make it in the Prefect UI or see docs/blocks.md; a folder of that name is ./{value}",
        ) from None
    place = block.place() if isinstance(block, PlaceBlock) else None
    if not isinstance(place, kind):
        raise UsageError(f"{value} is a {type(block).__name__} that is not of rayorch-flows")
    return place


def _complaints(error: BaseException) -> str:
    """What pydantic says about each field, without what it was given."""
    invalid = error if isinstance(error, ValidationError) else error.__cause__
    if not isinstance(invalid, ValidationError):
        return type(error).__name__
    found = invalid.errors(include_url=False, include_input=False, include_context=False)
    return "; ".join(f"{'.'.join(map(str, each['loc'])) or 'block'}: {each['msg']}" for each in found)
