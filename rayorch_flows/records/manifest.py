"""Manifests: which source items one microbatch holds. Small JSON files on the table's storage.

A manifest exists from planning until its microbatch is committed and cleaned up, so one that is found is unfinished
work. Its id is a hash of its content: two ingests that plan the same group write the same file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rayorch_flows.records.source import SourceItem
from rayorch_flows.records.storage import PRIVATE_FOLDER, TableStorage

_SUFFIX: Final = ".json"


class Manifest(BaseModel):
    """The plan of one microbatch. The order of ``sources`` is the order of the engine's rows."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = 1
    flow: str = Field(description="Name of the flow definition")
    semantic_fingerprint: str
    sources: tuple[SourceItem, ...]
    retry_after: datetime | None = Field(
        default=None, description="Set when failed rows are to be replaced: those committed up to this time"
    )

    @cached_property
    def microbatch_id(self) -> str:
        """Deterministic: the same sources under the same fingerprint are the same microbatch."""
        content = [
            self.flow,
            self.semantic_fingerprint,
            None if self.retry_after is None else self.retry_after.isoformat(),
            [[item.uri, item.content_hash or f"{item.size} {item.modified_at} {item.etag}"] for item in self.sources],
        ]
        encoded = json.dumps(content, ensure_ascii=True, separators=(",", ":")).encode()
        return hashlib.blake2b(encoded, digest_size=16).hexdigest()

    @property
    def uris(self) -> list[str]:
        """The engine's source column."""
        return [item.uri for item in self.sources]


class ManifestStore:
    """The manifests of one table under one semantic fingerprint."""

    def __init__(
        self, table_uri: str, semantic_fingerprint: str, storage_options: Mapping[str, str] | None = None
    ) -> None:
        self._storage = TableStorage(table_uri, storage_options)
        self._folder = f"manifests/{semantic_fingerprint}"

    def write(self, manifest: Manifest) -> str:
        """Write the manifest, all or nothing; return its microbatch id."""
        self.write_all([manifest])
        return manifest.microbatch_id

    def write_all(self, manifests: Sequence[Manifest]) -> None:
        """Write each manifest, all or nothing."""
        self._storage.write_all({self._path(m.microbatch_id): m.model_dump_json().encode() for m in manifests})

    def read(self, microbatch_id: str) -> Manifest | None:
        """The manifest, or None if there is none (any more) or it cannot be understood."""
        return _parsed(self._storage.read(self._path(microbatch_id)), microbatch_id)

    def ids(self) -> list[str]:
        """Microbatch ids of all unfinished manifests."""
        return [name.removesuffix(_SUFFIX) for name in self._storage.names(self._folder) if name.endswith(_SUFFIX)]

    def unfinished(self) -> list[Manifest]:
        """All manifests that are still there. One that cannot be understood is deleted: it holds a plan, no data."""
        manifests: list[Manifest] = []
        ids = self.ids()
        for microbatch_id, data in zip(ids, self._storage.read_all([self._path(i) for i in ids]), strict=True):
            manifest = _parsed(data, microbatch_id)
            if manifest is not None:
                manifests.append(manifest)
            elif data is not None:
                self.delete(microbatch_id)
        return manifests

    def delete(self, microbatch_id: str) -> None:
        self._storage.delete(self._path(microbatch_id))

    def uri(self, microbatch_id: str) -> str:
        """Where the manifest lies, for people and for flow parameters."""
        return f"{self._storage.table_uri}/{PRIVATE_FOLDER}/{self._path(microbatch_id)}"

    def _path(self, microbatch_id: str) -> str:
        return f"{self._folder}/{microbatch_id}{_SUFFIX}"


def _parsed(data: bytes | None, microbatch_id: str) -> Manifest | None:
    if data is None:
        return None
    try:
        manifest = Manifest.model_validate_json(data)
    except ValidationError:
        return None
    return manifest if manifest.microbatch_id == microbatch_id else None
