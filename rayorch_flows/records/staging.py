"""Durable rows of source items that became terminal inside a microbatch that still runs.

One Arrow file per write, under ``staging/<semantic fingerprint>/<microbatch>/``, named by attempt and number, so
that any number of attempts and hosts write side by side without overwriting each other. Reading merges them: one row
a source item. A file that cannot be read in full is ignored: its items run again.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from rayorch_flows.errors import TableError
from rayorch_flows.program.outcomes import Cause, ItemOutcome
from rayorch_flows.records.arrow import ArrowSchema, ArrowTable, pa, pc, rows_at
from rayorch_flows.records.manifest import Manifest
from rayorch_flows.records.schema import (
    SOURCE_INDEX,
    SourceOutcomeLike,
    failed_rows,
    outcome_rows,
    staged_schema,
)
from rayorch_flows.records.storage import TableStorage

_SUFFIX: Final = ".arrow"


@dataclass(frozen=True, slots=True)
class Staged:
    """What is staged of one microbatch, one row a source item.

    ``done`` are the places in the manifest that need not run again: everything but retryable failures.
    """

    rows: ArrowTable
    done: frozenset[int]
    retryable: frozenset[int]

    def missing(self, manifest: Manifest) -> list[int]:
        """The places that an attempt has to run: never staged, or failed retryably."""
        return [index for index in range(len(manifest.sources)) if index not in self.done]

    def final(self) -> ArrowTable:
        """The rows without retryable failures: what may be committed while retries are left."""
        return self.rows.filter(pc.is_in(self.rows[SOURCE_INDEX], pa.array(sorted(self.done), pa.int32())))

    def complete(self, manifest: Manifest, record_schema: ArrowSchema, attempt: int, cause: Cause) -> ArrowTable:
        """One row for every source of the manifest: what was never staged failed by ``cause``."""
        absent = [i for i in range(len(manifest.sources)) if i not in self.done and i not in self.retryable]
        if not absent:
            return self.rows
        failed = failed_rows(manifest.sources, absent, record_schema, attempt, cause)
        return pa.concat_tables([self.rows, failed])


class StagingSink:
    """Takes terminal source items from the engine host; every ``write`` is durable when it returns.

    Picklable. ``SourceOutcome.index`` is the place of the item in the manifest. ``repr`` shows no storage options.
    """

    def __init__(
        self,
        table_uri: str,
        manifest: Manifest,
        record_schema: ArrowSchema,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        self._storage = TableStorage(table_uri, storage_options)
        self._manifest = manifest
        self._schema = record_schema
        self._writer = uuid.uuid4().hex[:12]
        self._written = 0

    def __reduce__(self) -> tuple[object, ...]:
        return (
            StagingSink,
            (self._storage.table_uri, self._manifest, self._schema, self._storage.storage_options),
        )

    def __repr__(self) -> str:
        return f"StagingSink({self._storage.table_uri!r}, {self._manifest.microbatch_id!r})"

    def write(self, microbatch: str, attempt: int, outcomes: Sequence[SourceOutcomeLike]) -> None:
        """Stage these outcomes."""
        if microbatch != self._manifest.microbatch_id:
            raise TableError(
                f"this sink stages microbatch {self._manifest.microbatch_id}, not {microbatch}",
                where=self._storage.table_uri,
            )
        if not outcomes:
            return
        rows = outcome_rows(outcomes, self._manifest.sources, self._schema, attempt)
        self._written += 1
        name = f"{attempt:06d}-{self._written:06d}-{self._writer}{_SUFFIX}"
        folder = _folder(self._manifest.semantic_fingerprint, microbatch)
        self._storage.write(f"{folder}/{name}", _encode(rows))

    def done(self, microbatch: str) -> frozenset[int]:
        """The places that are staged and need not run again."""
        storage = self._storage
        fingerprint = self._manifest.semantic_fingerprint
        return StagingArea(storage.table_uri, fingerprint, self._schema, storage.storage_options).read(microbatch).done

    def flush(self, microbatch: str) -> None:
        """Nothing is held back."""

    def close(self, microbatch: str) -> None:
        """Nothing is held open."""


class StagingArea:
    """What is staged beside one table under one semantic fingerprint."""

    def __init__(
        self,
        table_uri: str,
        semantic_fingerprint: str,
        record_schema: ArrowSchema,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        self._storage = TableStorage(table_uri, storage_options)
        self._fingerprint = semantic_fingerprint
        self._schema = staged_schema(record_schema)

    def read(self, microbatch_id: str) -> Staged:
        """Merge everything that was staged for this microbatch."""
        folder = _folder(self._fingerprint, microbatch_id)
        paths = [f"{folder}/{name}" for name in self._storage.names(folder) if name.endswith(_SUFFIX)]
        decoded = [_decode(data, self._schema) for data in self._storage.read_all(paths) if data is not None]
        tables = [rows for rows in decoded if rows is not None]
        return merge(pa.concat_tables(tables) if tables else self._schema.empty_table())

    def clear(self, microbatch_id: str) -> None:
        """Delete what was staged for this microbatch."""
        self._storage.delete_folder(_folder(self._fingerprint, microbatch_id))


def merge(rows: ArrowTable) -> Staged:
    """Keep one row a source item: a final one before a retryable failure, a success before a failure; among
    successes and final failures the first written (it was published), among retryable failures the last."""
    indices = cast("list[int]", rows[SOURCE_INDEX].to_pylist())
    outcomes = cast("list[str]", rows["outcome"].to_pylist())
    retryable = cast("list[bool]", rows["retryable"].to_pylist())
    best: dict[int, tuple[int, int]] = {}
    for place, index in enumerate(indices):
        rank = 0 if outcomes[place] != ItemOutcome.FAILED.value else 2 if retryable[place] else 1
        held = best.get(index)
        if held is None or rank < held[0] or rank == held[0] == 2:
            best[index] = (rank, place)
    return Staged(
        rows_at(rows, [place for _, place in best.values()]),
        frozenset(index for index, (rank, _) in best.items() if rank < 2),
        frozenset(index for index, (rank, _) in best.items() if rank == 2),
    )


def _folder(semantic_fingerprint: str, microbatch_id: str) -> str:
    return f"staging/{semantic_fingerprint}/{microbatch_id}"


def _encode(rows: ArrowTable) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(sink, rows.schema, options=options) as writer:
        writer.write_table(rows)
    return cast("bytes", sink.getvalue().to_pybytes())


def _decode(data: bytes, schema: ArrowSchema) -> ArrowTable | None:
    try:
        rows: Any = pa.ipc.open_file(pa.BufferReader(data)).read_all()
        return rows.cast(schema) if rows.schema.names == schema.names else None
    except (pa.ArrowException, ValueError, OSError):
        return None
