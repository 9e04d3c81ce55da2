"""The record table: one Delta table a corpus, one row a source item, exactly once.

How a commit stays exactly-once under any number of writers: it reads the rows it might collide with from one
snapshot of the table, decides, and writes one Delta transaction on top of that very snapshot. Every commit of ours
carries the same Delta application transaction id, so that of two commits on one snapshot Delta accepts one and
refuses the other, which reads again and decides again.
"""

from __future__ import annotations

import functools
import logging
import operator
import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from deltalake import CommitProperties, DeltaTable, Transaction, WriterProperties, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from rayorch_flows.errors import TableError
from rayorch_flows.program.outcomes import ItemOutcome
from rayorch_flows.records.arrow import ArrowSchema, ArrowTable, ds, first_of_each, pa, pc
from rayorch_flows.records.manifest import Manifest, ManifestStore
from rayorch_flows.records.schema import canonical, table_schema
from rayorch_flows.records.source import SourceItem
from rayorch_flows.records.staging import StagingArea, StagingSink
from rayorch_flows.records.storage import PRIVATE_FOLDER, table_location
from rayorch_flows.records.uris import local_path

KNOWN_COLUMNS: Final = (
    "uri", "size", "modified_at", "etag", "content_hash", "outcome", "retryable", "committed_at",
)  # fmt: skip
_KEY_COLUMNS: Final = (
    "uri", "content_hash", "semantic_fingerprint", "outcome", "microbatch_id", "flow_run_id", "attempt",
    "committed_at",
)  # fmt: skip
_LOG: Final = logging.getLogger(__name__)
_WRITER: Final = WriterProperties(compression="ZSTD")
_APPLICATION: Final = "rayorch-flows"
_FLOW_PROPERTY: Final = "rayorchFlows.flow"
_PATIENCE_S: Final = 120.0
_COMPACT_EVERY: Final = 20
_COMPACT_BYTES: Final = 64 * 1024 * 1024
_PLAIN: Final = re.compile(r"[A-Za-z0-9._-]*")

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
        delta = bare._load()
        if delta is None:
            raise TableError(
                "there is no record table here",
                where=bare.uri,
                next_step="check the place, or make it with: rayorch-flows ingest SOURCE --table TABLE",
            )
        schema: Any = pa.schema(cast("Any", delta.schema().to_arrow()))
        lacking = [name for name in bare.schema.names if name not in schema.names]
        if lacking:
            raise TableError(
                f"this Delta table is not a record table: it lacks {', '.join(lacking)}",
                where=bare.uri,
                next_step="give the table that rayorch-flows ingest wrote",
            )
        own = pa.schema([field for field in schema if field.name not in bare.schema.names])
        table = cls(uri, own, storage_options, flow=delta.metadata().configuration.get(_FLOW_PROPERTY, ""))
        table._check(delta)
        return table

    def create(self) -> None:
        """Create the table if there is none. Safe to call from any number of processes at once."""
        self._ready()

    def exists(self) -> bool:
        """Whether the table is there; TableError if something else is in its place."""
        return self._opened() is not None

    def version(self) -> int:
        """The table's Delta version, -1 if there is no table yet."""
        delta = self._opened()
        return -1 if delta is None else delta.version()

    def manifests(self, semantic_fingerprint: str) -> ManifestStore:
        """The manifests of unfinished microbatches beside this table."""
        return ManifestStore(self.uri, semantic_fingerprint, self._options)

    def staging(self, semantic_fingerprint: str) -> StagingArea:
        """What running microbatches have staged beside this table."""
        return StagingArea(self.uri, semantic_fingerprint, self.record_schema, self._options)

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
        delta = self._opened()
        if delta is None:
            return pa.schema([self.schema.field(name) for name in names]).empty_table()
        try:
            return _read(delta, names, among or {})
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise self._broken("read", error) from error

    def current(self, columns: Sequence[str] | None = None, *, semantic_fingerprint: str | None = None) -> ArrowTable:
        """The latest row of every URI, in the whole table or under one fingerprint."""
        names = list(columns) if columns is not None else list(self.schema.names)
        among = None if semantic_fingerprint is None else {"semantic_fingerprint": [semantic_fingerprint]}
        wanted = list(dict.fromkeys([*names, "uri", "committed_at"]))
        return first_of_each(self.rows(wanted, among=among), "uri", "committed_at").select(names)

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
        return self._transact(lambda delta: self._commit_once(delta, incoming, stamps))

    def refresh(self, items: Sequence[SourceItem], *, semantic_fingerprint: str) -> int:
        """Note a new size, time and tag for rows whose content is unchanged, and make them the current rows."""
        if not items:
            return 0
        return self._transact(lambda delta: self._refresh_once(delta, items, semantic_fingerprint))

    def compact(self) -> None:
        """Merge small files. Needed for speed only; loses quietly against a concurrent commit."""
        delta = self._opened()
        if delta is None:
            return
        try:
            delta.optimize.compact(target_size=_COMPACT_BYTES, writer_properties=_WRITER)
        except (DeltaError, OSError) as error:
            _LOG.debug("compaction of %s skipped: %s", self.uri, error)

    def _commit_once(self, delta: DeltaTable, incoming: ArrowTable, stamps: Mapping[str, str]) -> CommitResult:
        existing = _read(delta, _KEY_COLUMNS, {"uri": incoming["uri"].unique().to_pylist()})
        decision = _decide(existing, incoming, stamps)
        if decision.rows.num_rows == 0:
            return CommitResult(delta.version(), 0, 0, decision.skipped)
        data = self._stamped(decision.rows, stamps, _later_than(existing["committed_at"]))
        if decision.replaced:
            self._replace(delta, data, stamps["semantic_fingerprint"])
        else:
            write_deltalake(
                delta,
                data,
                mode="append",
                writer_properties=_WRITER,
                commit_properties=_properties(delta),
            )
        return CommitResult(delta.version(), decision.inserted, decision.replaced, decision.skipped)

    def _refresh_once(self, delta: DeltaTable, items: Sequence[SourceItem], semantic_fingerprint: str) -> int:
        uris = [item.uri for item in items]
        at = _later_than(_read(delta, _KEY_COLUMNS, {"uri": uris})["committed_at"])
        rows = _read(delta, self.schema.names, {"uri": uris, "semantic_fingerprint": [semantic_fingerprint]})
        wanted = {(item.uri, item.content_hash): item for item in items}
        found = [wanted.get(key) for key in _keys(rows)]
        rows = rows.filter(pa.array([item is not None for item in found]))
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
        self._replace(delta, rows, semantic_fingerprint)
        return len(news)

    def _replace(self, delta: DeltaTable, data: ArrowTable, semantic_fingerprint: str) -> None:
        """Put ``data`` into the table, in place of the rows with the same keys.

        The transaction overwrites every row with one of these content hashes, so the rows of other URIs that share a
        hash are written again with it. (Hashes are hex, so no file name enters SQL. ``merge`` would do, but it leaves
        files behind that pyarrow cannot filter.)
        """
        hashes = cast("list[str]", data["content_hash"].unique().to_pylist())
        there = _read(
            delta,
            self.schema.names,
            {"content_hash": hashes, "semantic_fingerprint": [semantic_fingerprint]},
        )
        keys = set(_keys(data))
        kept = there.filter(pa.array([key not in keys for key in _keys(there)], pa.bool_()))
        quoted = ", ".join(f"'{_plain(value)}'" for value in hashes)
        write_deltalake(
            delta,
            pa.concat_tables([kept.cast(data.schema), data]),
            mode="overwrite",
            predicate=f"semantic_fingerprint = '{_plain(semantic_fingerprint)}' AND content_hash IN ({quoted})",
            writer_properties=_WRITER,
            commit_properties=_properties(delta),
        )

    def _transact(self, action: Callable[[DeltaTable], Result]) -> Result:
        """Run ``action`` on fresh snapshots until no concurrent commit gets in its way."""
        deadline = time.monotonic() + _PATIENCE_S
        tries = 0
        while True:
            try:
                delta = self._ready()
                result = action(delta)
                break
            except CommitFailedError as error:
                tries += 1
                if time.monotonic() > deadline:
                    raise self._broken(f"commit to (gave up after {tries} tries)", error) from error
                time.sleep(random.uniform(0.005, min(1.0, 0.02 * 2 ** min(tries, 6))))
            except (DeltaError, OSError, pa.ArrowException) as error:
                raise self._broken("commit to", error) from error
        if delta.version() % _COMPACT_EVERY == 0:
            self.compact()
        return result

    def _stamped(self, rows: ArrowTable, stamps: Mapping[str, str], at: datetime) -> ArrowTable:
        count = rows.num_rows
        for name, value in stamps.items():
            rows = rows.append_column(name, pa.repeat(pa.scalar(value, pa.string()), count))
        moment = pa.repeat(pa.scalar(at, pa.timestamp("us", tz="UTC")), count)
        return rows.append_column("committed_at", moment).select(self.schema.names).cast(self.schema)

    def _ready(self) -> DeltaTable:
        delta = self._opened()
        if delta is not None:
            return delta
        self._check_place_is_free()
        try:
            DeltaTable.create(
                self.uri,
                schema=self.schema,
                mode="ignore",
                name=self.flow or None,
                configuration={_FLOW_PROPERTY: self.flow} if self.flow else None,
                storage_options=self._options or None,
                raise_if_key_not_exists=False,
            )
        except (DeltaError, OSError) as error:  # another process may have been first
            delta = self._opened()
            if delta is None:
                raise self._broken("create", error) from error
            return delta
        delta = self._opened()
        if delta is None:
            raise TableError("the table was created but cannot be found", where=self.uri)
        return delta

    def _opened(self) -> DeltaTable | None:
        delta = self._load()
        if delta is not None:
            self._check(delta)
        return delta

    def _load(self) -> DeltaTable | None:
        try:
            return DeltaTable(self.uri, storage_options=self._options or None)
        except TableNotFoundError:
            return None
        except (DeltaError, OSError, ValueError) as error:
            raise self._broken("open", error) from error

    def _check(self, delta: DeltaTable) -> None:
        held = delta.metadata().configuration.get(_FLOW_PROPERTY, "")
        if held and self.flow and held != self.flow:
            raise TableError(
                f"this table holds the records of flow {held!r}, not of {self.flow!r}",
                where=self.uri,
                next_step="give each flow a table of its own",
            )
        schema: Any = pa.schema(cast("Any", delta.schema().to_arrow()))
        found = {field.name: field.type for field in schema}
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
        if not place.is_dir():
            raise TableError("there is a file where the table should be", where=self.uri)
        foreign = [entry.name for entry in place.iterdir() if entry.name not in (PRIVATE_FOLDER, "_delta_log")]
        if foreign:
            raise TableError(
                f"this folder is not a Delta table and not empty: it holds {sorted(foreign)[0]!r}",
                where=self.uri,
                next_step="give a new or an empty folder",
            )

    def _broken(self, doing: str, error: BaseException) -> TableError:
        return TableError(
            f"cannot {doing} the record table: {error}",
            where=self.uri,
            next_step="check that the storage is reachable and writable, and the storage options",
        )


def _rebuild(uri: str, record_schema: ArrowSchema, options: Mapping[str, str], flow: str) -> RecordTable:
    return RecordTable(uri, record_schema, options, flow=flow)


def _read(delta: DeltaTable, columns: Sequence[str], among: Mapping[str, Sequence[str]]) -> ArrowTable:
    tests = [ds.field(name).isin(pa.array(values, pa.string())) for name, values in among.items()]
    where = functools.reduce(operator.and_, tests) if tests else None
    dataset: Any = delta.to_pyarrow_dataset()
    try:
        return dataset.to_table(columns=list(columns), filter=where)
    except pa.ArrowNotImplementedError:  # a foreign writer left string views, which pyarrow cannot filter on read
        rows = dataset.to_table(columns=list(dict.fromkeys([*columns, *among])))
        return rows.filter(where).select(list(columns))


def _plain(value: str) -> str:
    if not _PLAIN.fullmatch(value):
        raise TableError(f"a fingerprint or content hash is made of letters and digits, not {value!r}")
    return value


def _properties(delta: DeltaTable) -> CommitProperties:
    return CommitProperties(app_transactions=[Transaction(_APPLICATION, delta.version() + 1)])


def _later_than(times: Any) -> datetime:
    """Now, or just after the youngest of ``times`` if that machine's clock was ahead: the latest row is the last."""
    now = datetime.now(UTC)
    youngest = cast("datetime | None", pc.max(times).as_py())
    return now if youngest is None else max(now, youngest + timedelta(microseconds=1))


def _without_repeats(rows: ArrowTable) -> ArrowTable:
    """One row a (uri, content_hash): a success before a failure, else the first."""
    best: dict[tuple[str, str], int] = {}
    outcomes = rows["outcome"].to_pylist()
    for place, key in enumerate(_keys(rows)):
        held = best.setdefault(key, place)
        if outcomes[held] == ItemOutcome.FAILED.value != outcomes[place]:
            best[key] = place
    return rows if len(best) == rows.num_rows else rows.take(pa.array(sorted(best.values()), pa.int64()))


def _decide(existing: ArrowTable, incoming: ArrowTable, stamps: Mapping[str, str]) -> _Decision:
    held = {
        (row["uri"], row["content_hash"]): row
        for row in cast("list[dict[str, Any]]", existing.to_pylist())
        if row["semantic_fingerprint"] == stamps["semantic_fingerprint"]
    }
    attempts = incoming["attempt"].to_pylist()
    kept: list[int] = []
    inserted = replaced = 0
    for place, key in enumerate(_keys(incoming)):
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
    rows = incoming if len(kept) == incoming.num_rows else incoming.take(pa.array(kept, pa.int64()))
    return _Decision(rows, inserted, replaced, incoming.num_rows - len(kept))


def _keys(rows: ArrowTable) -> list[tuple[str, str]]:
    return list(zip(rows["uri"].to_pylist(), rows["content_hash"].to_pylist(), strict=True))
