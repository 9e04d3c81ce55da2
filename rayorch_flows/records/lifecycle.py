"""From a listing to microbatches to run, and from a finished microbatch to committed rows: what orchestration calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rayorch_flows.program.outcomes import Cause
from rayorch_flows.records.manifest import Manifest
from rayorch_flows.records.planning import Retry, adopt, find_pending, plan_microbatches
from rayorch_flows.records.source import SourceItem
from rayorch_flows.records.table import CommitResult, RecordTable


@dataclass(frozen=True, slots=True)
class IngestPlan:
    """The microbatches of one ingest: first the ``adopted`` unfinished ones, then the new ones, all with manifests.

    ``listed`` sources, of which ``unchanged`` need nothing, ``retried`` failed before and run again.
    """

    microbatches: list[Manifest]
    adopted: int
    listed: int
    unchanged: int
    retried: int

    @property
    def pending(self) -> int:
        """How many sources the microbatches hold."""
        return sum(len(manifest.sources) for manifest in self.microbatches)


def plan_ingest(
    table: RecordTable,
    sources: Sequence[SourceItem],
    *,
    flow: str,
    semantic_fingerprint: str,
    microbatch_size: int,
    retry: Retry = Retry.NONE,
    limit: int | None = None,
    workers: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> IngestPlan:
    """Decide what of a listing to ingest, and write the manifests. ``storage_options`` are those of the source.

    Cleans up behind microbatches that were committed but not cleaned up, and commits what stale ones had finished.
    """
    table.create()
    store = table.manifests(semantic_fingerprint)
    known = table.known(semantic_fingerprint)
    adoption = adopt(store.unfinished(), sources, known)
    for manifest in adoption.finished:
        clean_up(table, manifest)
    for manifest in adoption.stale:
        commit_microbatch(table, manifest, flow_run_id="", unfinished=None)
        clean_up(table, manifest)
    if adoption.stale:
        known = table.known(semantic_fingerprint)
    resumed = {item.uri for manifest in adoption.resume for item in manifest.sources}
    room = None if limit is None else max(0, limit - len(resumed))
    pending = find_pending(
        [item for item in sources if item.uri not in resumed],
        known,
        retry=retry,
        limit=room,
        workers=workers,
        storage_options=storage_options,
    )
    table.refresh(pending.moved, semantic_fingerprint=semantic_fingerprint)
    fresh = plan_microbatches(
        pending.items, microbatch_size, flow=flow, semantic_fingerprint=semantic_fingerprint
    ) + plan_microbatches(
        pending.retried,
        microbatch_size,
        flow=flow,
        semantic_fingerprint=semantic_fingerprint,
        retry_after=pending.retry_after,
    )
    store.write_all(fresh)
    return IngestPlan(
        microbatches=[*adoption.resume, *fresh],
        adopted=len(adoption.resume),
        listed=len(sources),
        unchanged=pending.unchanged,
        retried=len(pending.retried),
    )


def commit_microbatch(
    table: RecordTable,
    manifest: Manifest,
    *,
    flow_run_id: str,
    unfinished: Cause | None,
    attempt: int = 0,
) -> CommitResult:
    """Commit what is staged of a microbatch.

    With ``unfinished`` its retries are used up: retryable failures are committed too, and sources without any outcome
    get a failed row with that cause. Without, only final rows are committed.
    """
    staged = table.staging(manifest.semantic_fingerprint).read(manifest.microbatch_id)
    if unfinished is None:
        rows = staged.final()
    else:
        rows = staged.complete(manifest, table.record_schema, attempt, unfinished)
    return table.commit(
        rows,
        microbatch_id=manifest.microbatch_id,
        flow_run_id=flow_run_id,
        semantic_fingerprint=manifest.semantic_fingerprint,
    )


def clean_up(table: RecordTable, manifest: Manifest) -> None:
    """Forget a committed microbatch: its staged rows, then its manifest, so that a crash in between is noticed."""
    table.staging(manifest.semantic_fingerprint).clear(manifest.microbatch_id)
    table.manifests(manifest.semantic_fingerprint).delete(manifest.microbatch_id)
