"""Small makers shared by the tests of the records room."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from rayorch_flows.lineage.protocol import ChildOutcome
from rayorch_flows.program.outcomes import Cause, CauseKind, ItemOutcome
from rayorch_flows.records.manifest import Manifest
from rayorch_flows.records.schema import outcome_rows
from rayorch_flows.records.source import SourceItem
from rayorch_flows.records.table import CommitResult, RecordTable

RECORD = pa.schema([("text", pa.string()), ("pages", pa.int64())])
PRINT = "f" * 64
"""A semantic fingerprint."""


@dataclass(frozen=True)
class Outcome:
    """The fields of the runtime's SourceOutcome that staging looks at."""

    index: int
    outcome: ItemOutcome = ItemOutcome.PRESENT
    value: Any = None
    cause: Cause | None = None
    children: tuple[ChildOutcome, ...] = ()


def item(name: str, content_hash: str | None = None, **fields: Any) -> SourceItem:
    """A source item at ``/data/<name>`` with a hash made from its name."""
    found = name.encode().hex()[:32] if content_hash is None else content_hash
    return SourceItem(uri=f"/data/{name}", content_hash=found, **{"size": 1, **fields})


def present(index: int, text: str = "", children: tuple[ChildOutcome, ...] = ()) -> Outcome:
    return Outcome(index, value={"text": text, "pages": index}, children=children)


def failed(index: int, *, retryable: bool = False, message: str = "no") -> Outcome:
    return Outcome(index, ItemOutcome.FAILED, cause=Cause(CauseKind.CORRUPT, message, retryable=retryable))


def manifest_of(items: Sequence[SourceItem], **fields: Any) -> Manifest:
    return Manifest(**{"flow": "pdf", "semantic_fingerprint": PRINT, "sources": tuple(items), **fields})


def commit(
    table: RecordTable,
    items: Sequence[SourceItem],
    outcomes: Sequence[Outcome] | None = None,
    *,
    microbatch: str = "m",
    run: str = "run",
    fingerprint: str = PRINT,
    attempt: int = 1,
) -> CommitResult:
    """Commit these items, all present unless ``outcomes`` says otherwise."""
    made = [present(index, entry.uri) for index, entry in enumerate(items)] if outcomes is None else outcomes
    rows = outcome_rows(made, items, table.record_schema, attempt)
    return table.commit(rows, microbatch_id=microbatch, flow_run_id=run, semantic_fingerprint=fingerprint)
