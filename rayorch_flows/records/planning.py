"""What is left to ingest, and how it is grouped: anti-join with the table, adoption, balanced microbatches."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, cast

from rayorch_flows.errors import UsageError
from rayorch_flows.program.outcomes import ItemOutcome
from rayorch_flows.records.arrow import ArrowTable, latest_of_each, pa, pc
from rayorch_flows.records.manifest import Manifest
from rayorch_flows.records.source import SourceItem, hash_sources


class Retry(StrEnum):
    """Which failed rows of the table are ingested again."""

    NONE = "none"
    RETRYABLE = "retryable"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Pending:
    """The answer to: what of this listing is not in the table yet?

    ``items`` are new or changed, hashed. ``retried`` failed before and are wanted again; ``retry_after`` is the
    commit time of the youngest of their rows. ``unchanged`` counts what the table already holds. ``moved`` (counted
    there too) are sources whose time or tag changed while their content is known: ``RecordTable.refresh`` notes that,
    so that they are not hashed again next time.
    """

    items: list[SourceItem]
    retried: list[SourceItem]
    retry_after: datetime | None
    unchanged: int
    moved: list[SourceItem]


@dataclass(frozen=True, slots=True)
class Adoption:
    """Unfinished manifests found beside the table.

    ``resume``: run them again, they start from what is staged. ``finished``: every source is in the table, only the
    clean-up is missing. ``stale``: some source has changed or is gone since. ``foreign``: of other sources than listed.
    """

    resume: list[Manifest]
    finished: list[Manifest]
    stale: list[Manifest]
    foreign: list[Manifest]


@dataclass(frozen=True, slots=True)
class _Known:
    failed: bool
    retryable: bool
    committed_at: datetime


def find_pending(
    sources: Sequence[SourceItem],
    known: ArrowTable,
    *,
    retry: Retry = Retry.NONE,
    limit: int | None = None,
    workers: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Pending:
    """Compare a listing with ``RecordTable.known(fingerprint)``: first by URI, size and etag or time, then by hash.

    Only what the first look leaves over is read and hashed, and no more of it than ``limit`` needs.
    """
    candidates = _not_settled(sources, known, retry)
    rows = _rows_of(known, [item.uri for item in candidates])
    items: list[SourceItem] = []
    retried: list[SourceItem] = []
    moved: list[SourceItem] = []
    youngest: datetime | None = None
    step = max(1, len(candidates) if limit is None else max(64, limit))
    for start in range(0, len(candidates), step):
        chunk = candidates[start : start + step]
        for item in hash_sources(chunk, workers=workers, storage_options=storage_options):
            if limit is not None and len(items) + len(retried) >= limit:
                break
            row = rows.get((item.uri, item.content_hash))
            if row is None or not item.content_hash:
                items.append(item)
            elif row.failed and (retry is Retry.FAILED or (retry is Retry.RETRYABLE and row.retryable)):
                retried.append(item)
                youngest = max(youngest or row.committed_at, row.committed_at)
            else:
                moved.append(item)
        if limit is not None and len(items) + len(retried) >= limit:
            break
    unchanged = len(sources) - len(candidates) + len(moved)
    return Pending(items, retried, youngest, unchanged, moved)


def adopt(manifests: Iterable[Manifest], sources: Sequence[SourceItem], known: ArrowTable) -> Adoption:
    """Decide about unfinished manifests in view of a fresh listing and ``RecordTable.known(fingerprint)``."""
    adoption = Adoption([], [], [], [])
    found = list(manifests)
    if not found:
        return adoption
    listed = {item.uri: item for item in sources}
    rows = _rows_of(known, [item.uri for manifest in found for item in manifest.sources])
    for manifest in found:
        present = [listed.get(item.uri) for item in manifest.sources]
        if all(_is_committed(item, manifest, rows) for item in manifest.sources):
            adoption.finished.append(manifest)
        elif not any(present):
            adoption.foreign.append(manifest)
        elif all(now is not None and _same(now, item) for now, item in zip(present, manifest.sources, strict=True)):
            adoption.resume.append(manifest)
        else:
            adoption.stale.append(manifest)
    return adoption


def plan_microbatches(
    items: Sequence[SourceItem],
    size: int,
    *,
    flow: str,
    semantic_fingerprint: str,
    retry_after: datetime | None = None,
) -> list[Manifest]:
    """Group source items into the fewest microbatches of at most ``size`` items, with nearly the same bytes in each."""
    return [
        Manifest(
            flow=flow,
            semantic_fingerprint=semantic_fingerprint,
            sources=tuple(group),
            retry_after=retry_after,
        )
        for group in balance(items, size)
    ]


def balance(items: Sequence[SourceItem], size: int) -> list[list[SourceItem]]:
    """Largest first, each into the lightest group that has room; inside a group by URI. Deterministic."""
    if size < 1:
        raise UsageError(f"a microbatch holds at least one source, not {size}")
    groups: list[list[SourceItem]] = [[] for _ in range(-(-len(items) // size))]
    open_groups = [(0, number) for number in range(len(groups))]
    for item in sorted(items, key=lambda item: (-item.size, item.uri)):
        weight, number = heapq.heappop(open_groups)
        groups[number].append(item)
        if len(groups[number]) < size:
            heapq.heappush(open_groups, (weight + item.size, number))
    return [sorted(group, key=lambda item: item.uri) for group in groups]


def _not_settled(sources: Sequence[SourceItem], known: ArrowTable, retry: Retry) -> list[SourceItem]:
    """The items for which the table's latest row of their URI does not answer by its size and time alone."""
    if known.num_rows == 0 or not sources:
        return list(sources)
    listing = pa.table(
        {
            "place": pa.array(range(len(sources)), pa.int64()),
            "uri": pa.array([item.uri for item in sources], pa.string()),
            "now_size": pa.array([item.size for item in sources], pa.int64()),
            "now_at": pa.array([item.modified_at for item in sources], pa.timestamp("us", tz="UTC")),
            "now_etag": pa.array([item.etag for item in sources], pa.string()),
        }
    )
    joined = listing.join(latest_of_each(known, "uri", "committed_at"), keys="uri", join_type="inner")
    etag, now_etag = pc.fill_null(joined["etag"], ""), joined["now_etag"]
    both_tagged = pc.and_(pc.not_equal(etag, ""), pc.not_equal(now_etag, ""))
    never = pa.scalar(0, pa.timestamp("us", tz="UTC"))
    same_time = pc.equal(pc.fill_null(joined["modified_at"], never), pc.fill_null(joined["now_at"], never))
    settled = pc.and_(
        pc.equal(joined["size"], joined["now_size"]),
        pc.if_else(both_tagged, pc.equal(etag, now_etag), same_time),
    )
    if retry is not Retry.NONE:
        again = pc.equal(joined["outcome"], ItemOutcome.FAILED.value)
        if retry is Retry.RETRYABLE:
            again = pc.and_(again, pc.fill_null(joined["retryable"], False))
        settled = pc.and_(settled, pc.invert(again))
    places = set(cast("list[int]", joined["place"].filter(settled).to_pylist()))
    return [item for place, item in enumerate(sources) if place not in places]


def _rows_of(known: ArrowTable, uris: Sequence[str]) -> dict[tuple[str, str], _Known]:
    if known.num_rows == 0 or not uris:
        return {}
    some = known.filter(pc.is_in(known["uri"], pa.array(uris, pa.string())))
    columns = ("uri", "content_hash", "outcome", "retryable", "committed_at")
    return {
        (uri, content_hash or ""): _Known(outcome == ItemOutcome.FAILED.value, bool(retryable), committed_at)
        for uri, content_hash, outcome, retryable, committed_at in zip(
            *(some[name].to_pylist() for name in columns), strict=True
        )
    }


def _is_committed(item: SourceItem, manifest: Manifest, rows: Mapping[tuple[str, str], _Known]) -> bool:
    row = rows.get((item.uri, item.content_hash))
    return row is not None and (manifest.retry_after is None or row.committed_at > manifest.retry_after)


def _same(now: SourceItem, before: SourceItem) -> bool:
    if now.size != before.size:
        return False
    if now.etag and before.etag:
        return now.etag == before.etag
    return now.modified_at == before.modified_at
