"""The record table: one Delta table a corpus, one row a source item, exactly once.

How a commit stays exactly-once under any number of writers: it reads the rows it might collide with from one
snapshot of the table, decides, and writes one Delta transaction on top of that very snapshot. Every commit of ours
carries the same Delta application transaction id, so that of two commits on one snapshot Delta accepts one and
refuses the other, which reads again and decides again.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from rayorch_flows.command import typed
from rayorch_flows.errors import TableError
from rayorch_flows.program.outcomes import ItemOutcome
from rayorch_flows.records import delta
from rayorch_flows.records.arrow import ArrowSchema, ArrowTable, latest_of_each, pa, pc, rows_at
from rayorch_flows.records.manifest import Manifest, ManifestStore
from rayorch_flows.records.schema import canonical, table_schema
from rayorch_flows.records.source import SourceItem
from rayorch_flows.records.staging import StagingArea, StagingSink
from rayorch_flows.records.storage import PRIVATE_FOLDER, TableStorage, plain_message, remote_options, table_location
from rayorch_flows.redaction import as_cause
from rayorch_flows.uris import local_path

KNOWN_COLUMNS: Final = (
    "uri", "size", "modified_at", "etag", "content_hash", "outcome", "retryable", "committed_at",
)  # fmt: skip
_KEY_COLUMNS: Final = (
    "uri", "content_hash", "semantic_fingerprint", "outcome", "microbatch_id", "flow_run_id", "attempt",
    "committed_at",
)  # fmt: skip
_PATIENCE_S: Final = 120.0
_COMPACT_EVERY: Final = 20
_VACUUM_EVERY: Final = 100

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class CommitResult:
    """What a commit did: rows that are new, failed rows that were replaced, rows that were there already."""

    version: int
    inserted: int
    replaced: int
    skipped: int


@dataclass(frozen=True, slots=True)
class _Decision:
    rows: ArrowTable
    inserted: int
    replaced: int
    skipped: int


class RecordTable:
    """The record table at ``uri``: a local folder or an object store URI that deltalake understands.

    ``flow`` names the flow whose records it holds; a table made by another flow is refused. ``storage_options``
    are deltalake's; they never appear in ``repr``.
    """

    def __init__(
        self,
        uri: str | Path,
        record_schema: ArrowSchema,
        storage_options: Mapping[str, str] | None = None,
        *,
        flow: str = "",
    ) -> None:
        self.uri = table_location(str(uri))
        self.flow = flow
        self.record_schema = canonical(record_schema)
        self.schema = table_schema(record_schema)
        self._options = dict(storage_options or {})

    def __repr__(self) -> str:
        return f"RecordTable({self.uri!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (self.uri, self.record_schema, self._options, self.flow)

    @classmethod
    def open(cls, uri: str | Path, storage_options: Mapping[str, str] | None = None) -> RecordTable:
        """Open an existing record table without knowing its flow: the record columns are those that it has."""
        bare = cls(uri, pa.schema([]), storage_options)
        snapshot = bare._load()
        if snapshot is None:
            raise TableError(
                "there is no record table here",
                where=bare.uri,
                next_step="check the place, or make it with: " + typed("ingest SOURCE --table TABLE"),
            )
        found = delta.columns_of(snapshot)
        lacking = [name for name in bare.schema.names if name not in found.names]
        if lacking:
            raise TableError(
                f"this Delta table is not a record table: it lacks {', '.join(lacking)}",
                where=bare.uri,
                next_step="give the table that rayorch-flows ingest wrote",
            )
        own = pa.schema([field for field in found if field.name not in bare.schema.names])
        table = cls(uri, own, storage_options, flow=delta.flow_of(snapshot))
        table._check(snapshot)
        return table

    def create(self) -> None:
        """Create the table if there is none. Safe to call from any number of processes at once."""
        self._ready()

    def exists(self) -> bool:
        """Whether the table is there; TableError if something else is in its place."""
        return self._opened() is not None

    def version(self) -> int:
        """The table's Delta version, -1 if there is no table yet."""
        snapshot = self._opened()
        return -1 if snapshot is None else snapshot.version()

    def manifests(self, semantic_fingerprint: str) -> ManifestStore:
        """The manifests of unfinished microbatches beside this table."""
        return ManifestStore(self.uri, semantic_fingerprint, self._options)

    def staging(self, semantic_fingerprint: str) -> StagingArea:
        """What running microbatches have staged beside this table."""
        return StagingArea(self.uri, semantic_fingerprint, self.record_schema, self._options)

    def storage(self) -> TableStorage:
        """Small files of other kinds beside this table."""
        return TableStorage(self.uri, self._options)

    def sink(self, manifest: Manifest) -> StagingSink:
        """The sink through which the engine host stages the outcomes of this microbatch."""
        return StagingSink(self.uri, manifest, self.record_schema, self._options)

    def known(self, semantic_fingerprint: str) -> ArrowTable:
        """``KNOWN_COLUMNS`` of every row under this fingerprint."""
        return self.rows(KNOWN_COLUMNS, among={"semantic_fingerprint": [semantic_fingerprint]})

    def rows(
        self, columns: Sequence[str] | None = None, *, among: Mapping[str, Sequence[str]] | None = None
    ) -> ArrowTable:
        """All rows, or those whose value in each column of ``among`` is one of the given; all columns or some."""
        names = list(columns) if columns is not None else list(self.schema.names)
        snapshot = self._opened()
        if snapshot is None:
            return pa.schema([self.schema.field(name) for name in names]).empty_table()
        try:
            return delta.read(snapshot, names, among or {})
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise self._broken("read", error) from as_cause(error, self._options)

    def current(self, columns: Sequence[str] | None = None, *, semantic_fingerprint: str | None = None) -> ArrowTable:
        """The latest row of every URI, in the whole table or under one fingerprint."""
        names = list(columns) if columns is not None else list(self.schema.names)
        among = None if semantic_fingerprint is None else {"semantic_fingerprint": [semantic_fingerprint]}
        wanted = list(dict.fromkeys([*names, "uri", "committed_at"]))
        return latest_of_each(self.rows(wanted, among=among), "uri", "committed_at").select(names)

    def committed(self, manifest: Manifest, columns: Sequence[str] | None = None) -> ArrowTable:
        """The rows that the table holds for the sources of a microbatch, whichever microbatch committed them."""
        names = list(columns) if columns is not None else list(self.schema.names)
        among = {"uri": manifest.uris, "semantic_fingerprint": [manifest.semantic_fingerprint]}
        rows = self.rows(list(dict.fromkeys([*names, "uri", "content_hash"])), among=among)
        wanted = {(item.uri, item.content_hash) for item in manifest.sources}
        mask = pa.array([key in wanted for key in delta.keys_of(rows)], pa.bool_())
        return rows.filter(mask).select(names)

    def commit(
        self,
        rows: ArrowTable,
        *,
        microbatch_id: str,
        flow_run_id: str,
        semantic_fingerprint: str,
    ) -> CommitResult:
        """Commit staged rows in one atomic transaction, exactly once.

        A row whose (uri, content_hash, semantic_fingerprint) is there already is dropped, unless the one that is there
        failed: then it is replaced. Committing the same rows again changes nothing.
        """
        stamps = {
            "microbatch_id": microbatch_id,
            "flow_run_id": flow_run_id,
            "semantic_fingerprint": semantic_fingerprint,
        }
        incoming = _without_repeats(rows)
        if incoming.num_rows == 0:
            return CommitResult(self._ready().version(), 0, 0, 0)
        return self._transact(lambda snapshot: self._commit_once(snapshot, incoming, stamps))

    def refresh(self, items: Sequence[SourceItem], *, semantic_fingerprint: str) -> int:
        """Note a new size, time and tag for rows whose content is unchanged, and make them the current rows."""
        if not items:
            return 0
        return self._transact(lambda snapshot: self._refresh_once(snapshot, items, semantic_fingerprint))

    def maintain(self) -> None:
        """Merge small files and delete those that no version of the last week uses. For speed and space only."""
        snapshot = self._opened()
        if snapshot is not None:
            delta.compact(snapshot)
            delta.vacuum(snapshot)

    def _commit_once(self, snapshot: DeltaTable, incoming: ArrowTable, stamps: Mapping[str, str]) -> CommitResult:
        existing = delta.read(snapshot, _KEY_COLUMNS, {"uri": incoming["uri"].unique().to_pylist()})
        decision = _decide(existing, incoming, stamps)
        if decision.rows.num_rows:
            data = self._stamped(decision.rows, stamps, _later_than(existing["committed_at"]))
            if decision.replaced:
                delta.replace(snapshot, data, stamps["semantic_fingerprint"])
            else:
                delta.append(snapshot, data)
        return CommitResult(snapshot.version(), decision.inserted, decision.replaced, decision.skipped)

    def _refresh_once(self, snapshot: DeltaTable, items: Sequence[SourceItem], semantic_fingerprint: str) -> int:
        uris = [item.uri for item in items]
        at = _later_than(delta.read(snapshot, _KEY_COLUMNS, {"uri": uris})["committed_at"])
        rows = delta.read(snapshot, self.schema.names, {"uri": uris, "semantic_fingerprint": [semantic_fingerprint]})
        wanted = {(item.uri, item.content_hash): item for item in items}
        found = [wanted.get(key) for key in delta.keys_of(rows)]
        rows = rows.filter(pa.array([item is not None for item in found], pa.bool_()))
        news = [item for item in found if item is not None]
        if not news:
            return 0
        changed = {
            "size": [item.size for item in news],
            "modified_at": [item.modified_at for item in news],
            "etag": [item.etag for item in news],
            "committed_at": [at] * len(news),
        }
        for name, values in changed.items():
            field = self.schema.field(name)
            rows = rows.set_column(self.schema.get_field_index(name), field, pa.array(values, field.type))
        delta.replace(snapshot, rows, semantic_fingerprint)
        return len(news)

    def _transact(self, action: Callable[[DeltaTable], Result]) -> Result:
        """Run ``action`` on fresh snapshots until no concurrent commit gets in its way."""
        deadline = time.monotonic() + _PATIENCE_S
        tries = 0
        while True:
            try:
                snapshot = self._ready()
                result = action(snapshot)
                break
            except CommitFailedError as error:
                tries += 1
                if time.monotonic() > deadline:
                    raise self._broken(f"commit to (gave up after {tries} tries)", error) from as_cause(
                        error, self._options
                    )
                time.sleep(random.uniform(0.005, min(1.0, 0.02 * 2 ** min(tries, 6))))
            except (DeltaError, OSError, pa.ArrowException) as error:
                raise self._broken("commit to", error) from as_cause(error, self._options)
        if snapshot.version() % _COMPACT_EVERY == 0:
            delta.compact(snapshot)
        if snapshot.version() % _VACUUM_EVERY == 0:
            delta.vacuum(snapshot)
        return result

    def _stamped(self, rows: ArrowTable, stamps: Mapping[str, str], at: datetime) -> ArrowTable:
        count = rows.num_rows
        for name, value in stamps.items():
            rows = rows.append_column(name, pa.repeat(pa.scalar(value, pa.string()), count))
        moment = pa.repeat(pa.scalar(at, pa.timestamp("us", tz="UTC")), count)
        return rows.append_column("committed_at", moment).select(self.schema.names).cast(self.schema)

    def _ready(self) -> DeltaTable:
        snapshot = self._opened()
        if snapshot is not None:
            return snapshot
        self._check_place_is_free()
        try:
            delta.create(self.uri, self.schema, self.flow, remote_options(self.uri, self._options))
        except (DeltaError, OSError) as error:  # another process may have been first
            snapshot = self._opened()
            if snapshot is None:
                raise self._broken("create", error) from as_cause(error, self._options)
            return snapshot
        snapshot = self._opened()
        if snapshot is None:
            raise TableError("the table was created but cannot be found", where=self.uri)
        return snapshot

    def _opened(self) -> DeltaTable | None:
        snapshot = self._load()
        if snapshot is not None:
            self._check(snapshot)
        return snapshot

    def _load(self) -> DeltaTable | None:
        place = local_path(self.uri)
        if place is not None and place.is_file():
            raise TableError(
                "there is a file where the table should be", where=self.uri, next_step="give a folder as the table"
            )
        try:
            return delta.load(self.uri, remote_options(self.uri, self._options))
        except (DeltaError, OSError, ValueError) as error:
            raise self._broken("open", error) from as_cause(error, self._options)

    def _check(self, snapshot: DeltaTable) -> None:
        held = delta.flow_of(snapshot)
        if held and self.flow and held != self.flow:
            raise TableError(
                f"this table holds the records of flow {held!r}, not of {self.flow!r}",
                where=self.uri,
                next_step="give each flow a table of its own",
            )
        found = {field.name: field.type for field in delta.columns_of(snapshot)}
        wanted = {field.name: field.type for field in self.schema}
        if found == wanted:
            return
        lacking = [name for name in wanted if name not in found]
        extra = [name for name in found if name not in wanted]
        other = [f"{n} ({found[n]}, not {wanted[n]})" for n in wanted if n in found and found[n] != wanted[n]]
        parts = [("it lacks", lacking), ("it also has", extra), ("of another type", other)]
        said = "; ".join(f"{words}: {', '.join(names)}" for words, names in parts if names)
        raise TableError(
            f"the table at this place has other columns: {said}",
            where=self.uri,
            next_step="choose another place for this flow's records",
        )

    def _check_place_is_free(self) -> None:
        place = local_path(self.uri)
        if place is None or not place.exists():
            return
        foreign = [entry.name for entry in place.iterdir() if entry.name not in (PRIVATE_FOLDER, "_delta_log")]
        if foreign:
            raise TableError(
                f"this folder is not a Delta table and not empty: it holds {sorted(foreign)[0]!r}",
                where=self.uri,
                next_step="give a new or an empty folder",
            )

    def _broken(self, doing: str, error: BaseException) -> TableError:
        return TableError(
            f"cannot {doing} the record table: {plain_message(error, self._options)}",
            where=self.uri,
            next_step="check that the storage is reachable and writable, and the storage options",
        )


def _rebuild(uri: str, record_schema: ArrowSchema, options: Mapping[str, str], flow: str) -> RecordTable:
    return RecordTable(uri, record_schema, options, flow=flow)


def _later_than(times: Any) -> datetime:
    """Now, or just after the youngest of ``times`` if that machine's clock was ahead: the latest row is the last."""
    now = datetime.now(UTC)
    youngest = cast("datetime | None", pc.max(times).as_py())
    return now if youngest is None else max(now, youngest + timedelta(microseconds=1))


def _without_repeats(rows: ArrowTable) -> ArrowTable:
    """One row a (uri, content_hash): a success before a failure, else the first."""
    best: dict[tuple[str, str], int] = {}
    outcomes = rows["outcome"].to_pylist()
    for place, key in enumerate(delta.keys_of(rows)):
        held = best.setdefault(key, place)
        if outcomes[held] == ItemOutcome.FAILED.value != outcomes[place]:
            best[key] = place
    return rows if len(best) == rows.num_rows else rows_at(rows, sorted(best.values()))


def _decide(existing: ArrowTable, incoming: ArrowTable, stamps: Mapping[str, str]) -> _Decision:
    held = {
        (row["uri"], row["content_hash"]): row
        for row in cast("list[dict[str, Any]]", existing.to_pylist())
        if row["semantic_fingerprint"] == stamps["semantic_fingerprint"]
    }
    attempts = incoming["attempt"].to_pylist()
    kept: list[int] = []
    inserted = replaced = 0
    for place, key in enumerate(delta.keys_of(incoming)):
        there = held.get(key)
        if there is None:
            inserted += 1
        elif there["outcome"] != ItemOutcome.FAILED.value or (
            there["microbatch_id"], there["flow_run_id"], there["attempt"],
        ) == (stamps["microbatch_id"], stamps["flow_run_id"], attempts[place]):  # fmt: skip
            continue
        else:
            replaced += 1
        kept.append(place)
    rows = incoming if len(kept) == incoming.num_rows else rows_at(incoming, kept)
    return _Decision(rows, inserted, replaced, incoming.num_rows - len(kept))
