"""The record table's columns, and how a terminal source item becomes a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from deltalake import Schema as DeltaSchema

from rayorch_flows.errors import TableError
from rayorch_flows.lineage.protocol import ChildOutcome
from rayorch_flows.program.outcomes import Cause, CauseKind, ItemOutcome
from rayorch_flows.records.arrow import ArrowSchema, ArrowTable, pa
from rayorch_flows.records.source import SourceItem

CHILD: Final = pa.struct(
    [
        ("domain", pa.string()),
        ("ordinals", pa.list_(pa.int32())),
        ("outcome", pa.string()),
        ("cause_kind", pa.string()),
        ("cause", pa.string()),
    ]
)
SOURCE_COLUMNS: Final = pa.schema(
    [
        ("uri", pa.string()),
        ("size", pa.int64()),
        ("modified_at", pa.timestamp("us", tz="UTC")),
        ("etag", pa.string()),
        ("content_hash", pa.string()),
        ("outcome", pa.string()),
        ("cause_kind", pa.string()),
        ("cause", pa.string()),
        ("retryable", pa.bool_()),
        ("n_children", pa.int32()),
        ("children", pa.list_(CHILD)),
    ]
)
COMMIT_COLUMNS: Final = pa.schema(
    [
        ("microbatch_id", pa.string()),
        ("flow_run_id", pa.string()),
        ("semantic_fingerprint", pa.string()),
        ("attempt", pa.int32()),
        ("committed_at", pa.timestamp("us", tz="UTC")),
    ]
)
SOURCE_INDEX: Final = "source_index"
"""Only in staged rows: the place of the source item in its manifest."""
_STAGED_LAST: Final = pa.schema([("attempt", pa.int32()), (SOURCE_INDEX, pa.int32())])


class SourceOutcomeLike(Protocol):
    """What the runtime says of a terminal source item."""

    @property
    def index(self) -> int: ...
    @property
    def outcome(self) -> ItemOutcome: ...
    @property
    def value(self) -> Any: ...
    @property
    def cause(self) -> Cause | None: ...
    @property
    def children(self) -> tuple[ChildOutcome, ...]: ...


def canonical(record_schema: ArrowSchema) -> ArrowSchema:
    """The record columns as Delta stores them (one kind of string, microseconds), checked against ours."""
    reserved = {*SOURCE_COLUMNS.names, *COMMIT_COLUMNS.names, SOURCE_INDEX}
    clash = sorted(reserved.intersection(record_schema.names))
    if clash or len(set(record_schema.names)) != len(record_schema.names):
        raise TableError(
            f"the flow's record columns use reserved or repeated names: {', '.join(clash or record_schema.names)}",
            next_step="rename those fields of the flow's record schema",
        )
    try:
        delta = DeltaSchema.from_arrow(pa.schema([(field.name, _in_micros(field.type)) for field in record_schema]))
        stored = pa.schema(delta.to_arrow())
    except Exception as error:
        raise TableError(
            f"the flow's record schema cannot be stored in a Delta table: {error}",
            next_step="use strings, integers, floats, booleans, binaries, dates, timestamps, lists and structs",
        ) from error
    return pa.schema([pa.field(field.name, field.type, nullable=True) for field in stored])


def table_schema(record_schema: ArrowSchema) -> ArrowSchema:
    """All columns of the record table, in order."""
    return pa.schema([*SOURCE_COLUMNS, *canonical(record_schema), *COMMIT_COLUMNS])


def staged_schema(record_schema: ArrowSchema) -> ArrowSchema:
    """The columns of staged rows: those of the table that are known before the commit, and the source index."""
    return pa.schema([*SOURCE_COLUMNS, *canonical(record_schema), *_STAGED_LAST])


def outcome_rows(
    outcomes: Sequence[SourceOutcomeLike],
    sources: Sequence[SourceItem],
    record_schema: ArrowSchema,
    attempt: int,
) -> ArrowTable:
    """Staged rows of terminal source items; ``outcome.index`` is the place in ``sources``.

    A value that does not fit the record schema makes its own row failed (cause kind ``contract``) and no other.
    """
    schema = staged_schema(record_schema)
    names = frozenset(canonical(record_schema).names)
    rows = [_row(outcome, sources[outcome.index], names, attempt) for outcome in outcomes]
    try:
        return pa.Table.from_pylist(rows, schema=schema)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        pass
    for position, row in enumerate(rows):
        try:
            pa.Table.from_pylist([row], schema=schema)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            rows[position] = _contract_row(row, names, f"the record does not fit its schema: {error}")
    return pa.Table.from_pylist(rows, schema=schema)


def failed_rows(
    sources: Sequence[SourceItem],
    indices: Sequence[int],
    record_schema: ArrowSchema,
    attempt: int,
    cause: Cause,
) -> ArrowTable:
    """Staged rows for source items that never became terminal, all failed by ``cause``."""
    rows = [
        {
            **_source_part(sources[index]),
            "outcome": ItemOutcome.FAILED.value,
            **_cause_part(cause),
            "retryable": cause.retryable,
            "n_children": 0,
            "children": [],
            "attempt": attempt,
            SOURCE_INDEX: index,
        }
        for index in indices
    ]
    return pa.Table.from_pylist(rows, schema=staged_schema(record_schema))


def _in_micros(kind: Any) -> Any:
    """Nanoseconds would put the table out of reach of most Delta readers."""
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _in_micros(field.type)) for field in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(_in_micros(kind.value_type))
    return kind


def _row(outcome: SourceOutcomeLike, source: SourceItem, names: frozenset[str], attempt: int) -> dict[str, Any]:
    failed = outcome.outcome in (ItemOutcome.FAILED, ItemOutcome.SUPPRESSED)
    row: dict[str, Any] = {
        **_source_part(source),
        "outcome": ItemOutcome.FAILED.value if failed else outcome.outcome.value,
        **_cause_part(outcome.cause if failed else None),
        "retryable": bool(failed and outcome.cause is not None and outcome.cause.retryable),
        "n_children": len(outcome.children),
        "children": [_child(child) for child in outcome.children],
        "attempt": attempt,
        SOURCE_INDEX: outcome.index,
    }
    if outcome.outcome is not ItemOutcome.PRESENT:
        return row
    value = outcome.value
    if not isinstance(value, Mapping):
        return _contract_row(row, names, f"the record must be a dict, not {type(value).__name__}")
    unknown = sorted(str(key) for key in value if key not in names)
    if unknown:
        return _contract_row(row, names, f"the record has fields that its schema lacks: {', '.join(unknown)}")
    row.update(value)
    return row


def _contract_row(row: dict[str, Any], names: frozenset[str], message: str) -> dict[str, Any]:
    kept = {key: value for key, value in row.items() if key not in names}
    cause = Cause(CauseKind.CONTRACT, message)
    return {**kept, "outcome": ItemOutcome.FAILED.value, **_cause_part(cause), "retryable": False}


def _source_part(source: SourceItem) -> dict[str, Any]:
    return {
        "uri": source.uri,
        "size": source.size,
        "modified_at": source.modified_at,
        "etag": source.etag,
        "content_hash": source.content_hash,
    }


def _cause_part(cause: Cause | None) -> dict[str, Any]:
    if cause is None:
        return {"cause_kind": None, "cause": None}
    return {"cause_kind": cause.kind.value, "cause": _text(cause.message)}


def _child(child: ChildOutcome) -> dict[str, Any]:
    return {
        "domain": child.domain,
        "ordinals": list(child.ordinals),
        "outcome": child.outcome.value,
        **_cause_part(child.cause),
    }


def _text(message: str) -> str:
    """Text that UTF-8 can hold: lone surrogates (from file names in messages) become escapes."""
    return message.encode("utf-8", "backslashreplace").decode()
