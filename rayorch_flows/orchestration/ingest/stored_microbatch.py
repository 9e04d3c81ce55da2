"""One microbatch as it lies beside the table: its manifest, what is staged of it, and its commit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rayorch_flows.errors import TableError
from rayorch_flows.orchestration.ingest.prepared_flow import PreparedFlow
from rayorch_flows.orchestration.reporting.failures import count_rows
from rayorch_flows.orchestration.reporting.summary import MicrobatchSummary
from rayorch_flows.orchestration.settings.places import Places, TablePlace
from rayorch_flows.program.outcomes import Cause, CauseKind
from rayorch_flows.records.lifecycle import clean_up
from rayorch_flows.records.manifest import Manifest
from rayorch_flows.records.staging import Staged
from rayorch_flows.records.table import RecordTable
from rayorch_flows.runtime.host.client import MicrobatchSpec
from rayorch_flows.uris import with_options

_UNFINISHED = Cause(CauseKind.CANCELLED, "the engine ended before this source was finished", retryable=True)


@dataclass(frozen=True, slots=True)
class StoredMicrobatch:
    """``rows``: the places in the manifest that still have to run; ``options`` open the sources."""

    table: RecordTable
    manifest: Manifest
    rows: list[int]
    options: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)

    @property
    def microbatch(self) -> str:
        return self.manifest.microbatch_id

    @property
    def total(self) -> int:
        return len(self.manifest.sources)

    @property
    def staged(self) -> int:
        return self.total - len(self.rows)

    def spec(self) -> MicrobatchSpec:
        """What the engine is asked to do."""
        uris = self.manifest.uris
        return MicrobatchSpec(
            id=self.microbatch,
            columns=(with_options([uris[row] for row in self.rows], self.options),),
            rows=self.rows,
            sink=self.table.sink(self.manifest),
        )

    def retryable(self) -> int:
        """How many staged sources failed for a reason that may pass."""
        return len(self._read().retryable)

    def commit(self, summary: MicrobatchSummary, flow_run_id: str, attempt: int, aborted: Cause | None) -> None:
        """Commit a row for every source, then forget what is staged; the summary gets the numbers."""
        rows = self._read().complete(self.manifest, self.table.record_schema, attempt, aborted or _UNFINISHED)
        if self.table.manifests(self.manifest.semantic_fingerprint).read(self.microbatch) is None:
            rows = self.table.committed(self.manifest)  # by another run of it, which was faster
        else:
            self.table.commit(
                rows,
                microbatch_id=self.microbatch,
                flow_run_id=flow_run_id,
                semantic_fingerprint=self.manifest.semantic_fingerprint,
            )
        count_rows(rows, summary)
        summary.committed = True
        clean_up(self.table, self.manifest)

    def _read(self) -> Staged:
        return self.table.staging(self.manifest.semantic_fingerprint).read(self.microbatch)


def record_table_of(place: TablePlace, prepared: PreparedFlow) -> RecordTable:
    return RecordTable(place.uri, prepared.definition.record, place.options, flow=prepared.definition.name)


def open_microbatch(places: Places, prepared: PreparedFlow, microbatch: str) -> StoredMicrobatch | MicrobatchSummary:
    """Find the manifest and what is staged; what became of the microbatch if it is committed. Blocking."""
    record_table = record_table_of(places.table, prepared)
    manifest = record_table.manifests(prepared.fingerprint).read(microbatch)
    if manifest is None:
        if summary := find_committed(record_table, prepared.fingerprint, microbatch, prepared.child_noun):
            return summary
        raise TableError(
            f"there is no manifest of microbatch {microbatch}",
            where=record_table.uri,
            next_step="the flow or its sources have changed: run the ingest again",
        )
    staged = record_table.staging(prepared.fingerprint).read(microbatch)
    return StoredMicrobatch(record_table, manifest, staged.missing(manifest), places.source.options)


def find_committed(table: RecordTable, fingerprint: str, microbatch: str, child_noun: str) -> MicrobatchSummary | None:
    """What the table says of a microbatch whose flow run did not come to say it; None if it is not committed."""
    if table.manifests(fingerprint).read(microbatch) is not None:
        return None
    rows = table.rows(among={"microbatch_id": [microbatch], "semantic_fingerprint": [fingerprint]})
    if not rows.num_rows:
        return None
    summary = MicrobatchSummary(microbatch=microbatch, child_noun=child_noun, sources=rows.num_rows, committed=True)
    count_rows(rows, summary)
    return summary
