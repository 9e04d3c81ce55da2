"""What we ask of deltalake, each in one place: read a snapshot, write one transaction on top of it, tidy up."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from deltalake import CommitProperties, DeltaTable, Transaction, WriterProperties, write_deltalake
from deltalake.exceptions import DeltaError, TableNotFoundError

from rayorch_flows.errors import TableError
from rayorch_flows.records.arrow import ArrowSchema, ArrowTable, pa, pc

FLOW_PROPERTY: Final = "rayorchFlows.flow"
_APPLICATION: Final = "rayorch-flows"
_CHECKPOINT_EVERY: Final = "20"
"""Every commit opens the table: that replays the log since the last checkpoint."""
_PUSHED_VALUES: Final = 1000
_COMPACT_BYTES: Final = 64 * 1024 * 1024
_WRITER: Final = WriterProperties(compression="ZSTD")
_PLAIN: Final = re.compile(r"[A-Za-z0-9._-]*")
_LOG: Final = logging.getLogger(__name__)


def load(uri: str, storage_options: Mapping[str, str]) -> DeltaTable | None:
    """The newest snapshot, or None if there is no Delta table."""
    try:
        return DeltaTable(uri, storage_options=dict(storage_options) or None)
    except TableNotFoundError:
        return None


def create(uri: str, schema: ArrowSchema, flow: str, storage_options: Mapping[str, str]) -> None:
    """Create the table, unless it is there."""
    DeltaTable.create(
        uri,
        schema=schema,
        mode="ignore",
        name=flow or None,
        configuration={"delta.checkpointInterval": _CHECKPOINT_EVERY, **({FLOW_PROPERTY: flow} if flow else {})},
        storage_options=dict(storage_options) or None,
        raise_if_key_not_exists=False,
    )


def columns_of(delta: DeltaTable) -> ArrowSchema:
    return pa.schema(cast("Any", delta.schema().to_arrow()))


def flow_of(delta: DeltaTable) -> str:
    """The flow whose records the table holds, empty if it does not say."""
    return delta.metadata().configuration.get(FLOW_PROPERTY, "")


def read(delta: DeltaTable, columns: Sequence[str], among: Mapping[str, Sequence[str]]) -> ArrowTable:
    """Rows of the snapshot whose value in each column of ``among`` is one of the given, in no particular order.

    Read by deltalake's own engine: pyarrow would call back into Python from its threads, which aborts a process
    that ends at that moment, and it can filter neither deletion vectors nor files with string views.
    """
    stored = columns_of(delta)
    schema = pa.schema([stored.field(name) for name in dict.fromkeys([*columns, *among])])
    if not all(among.values()):
        return schema.empty_table().select(list(columns))
    tests = [_one_of(name, values) for name, values in among.items() if len(values) <= _PUSHED_VALUES]
    reader = delta.scan(columns=schema.names, predicate=" AND ".join(tests) or None)
    batches = [part for batch in pa.RecordBatchReader.from_stream(reader) for part in _stored_as(batch, schema)]
    rows = pa.Table.from_batches(batches, schema)
    for name, values in among.items():
        rows = rows.filter(pc.is_in(rows[name], pa.array(values, pa.string())))
    return rows.select(list(columns))


def append(delta: DeltaTable, data: ArrowTable) -> None:
    """Add rows in one transaction on top of this snapshot; CommitFailedError if another of ours came first."""
    write_deltalake(delta, data, mode="append", writer_properties=_WRITER, commit_properties=_properties(delta))


def replace(delta: DeltaTable, data: ArrowTable, semantic_fingerprint: str) -> None:
    """Put ``data`` into the table, in place of the rows with the same keys, in one transaction like ``append``.

    The transaction overwrites every row with one of these content hashes, so the rows of other URIs that share a
    hash are written again with it. Hashes are hex, so no file name enters SQL. (``merge`` would do, but leaves
    files behind that pyarrow cannot filter.)
    """
    hashes = cast("list[str]", data["content_hash"].unique().to_pylist())
    among = {"content_hash": hashes, "semantic_fingerprint": [semantic_fingerprint]}
    there = read(delta, data.schema.names, among)
    keys = set(keys_of(data))
    kept = there.filter(pa.array([key not in keys for key in keys_of(there)], pa.bool_()))
    quoted = ", ".join(f"'{_plain(value)}'" for value in hashes)
    write_deltalake(
        delta,
        pa.concat_tables([kept.cast(data.schema), data]),
        mode="overwrite",
        predicate=f"semantic_fingerprint = '{_plain(semantic_fingerprint)}' AND content_hash IN ({quoted})",
        writer_properties=_WRITER,
        commit_properties=_properties(delta),
    )


def compact(delta: DeltaTable) -> None:
    """Merge small files; loses quietly against a concurrent commit, since it is for speed only."""
    try:
        delta.optimize.compact(target_size=_COMPACT_BYTES, writer_properties=_WRITER)
    except (DeltaError, OSError) as error:
        _LOG.debug("compaction skipped: %s", error)


def vacuum(delta: DeltaTable) -> None:
    """Delete data files that no version of the last week uses."""
    try:
        delta.vacuum(dry_run=False)
    except (DeltaError, OSError) as error:
        _LOG.debug("vacuum skipped: %s", error)


def keys_of(rows: ArrowTable) -> list[tuple[str, str]]:
    """(uri, content_hash) of every row."""
    return list(zip(rows["uri"].to_pylist(), rows["content_hash"].to_pylist(), strict=True))


def _one_of(name: str, values: Sequence[str]) -> str:
    quoted = ", ".join("'" + value.replace("'", "''") + "'" for value in values)
    return f"{name} IN ({quoted})"


def _stored_as(batch: Any, schema: ArrowSchema) -> list[Any]:
    """The batch in the table's own types; in halves, as long as a string column is too large for one array."""
    try:
        return [pa.RecordBatch.from_arrays([c.cast(f.type) for c, f in zip(batch, schema, strict=True)], schema=schema)]
    except pa.ArrowInvalid:
        if batch.num_rows < 2:
            raise
        half = batch.num_rows // 2
        return [*_stored_as(batch.slice(0, half), schema), *_stored_as(batch.slice(half), schema)]


def _plain(value: str) -> str:
    if not _PLAIN.fullmatch(value):
        raise TableError(f"a fingerprint or content hash is made of letters and digits, not {value!r}")
    return value


def _properties(delta: DeltaTable) -> CommitProperties:
    """The same application id in every commit of ours: Delta refuses the second of two commits on one snapshot."""
    return CommitProperties(app_transactions=[Transaction(_APPLICATION, delta.version() + 1)])
