"""The sensor: a flow that looks at a source again and again, and ingests what has settled.

The record table is the watermark, so looking twice, too often or after a crash does no harm. An event that says that
something has arrived only wakes the sensor; what there is to do it finds out by itself.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from prefect import flow, get_run_logger
from pydantic import BaseModel

from rayorch_flows.orchestration.ingest.ingest_flow import ingest, list_place
from rayorch_flows.orchestration.ingest.prepared_flow import PreparedFlow, prepare
from rayorch_flows.orchestration.ingest.stored_microbatch import record_table_of
from rayorch_flows.orchestration.reporting.summary import IngestSummary
from rayorch_flows.orchestration.server.flow_states import in_one_message
from rayorch_flows.orchestration.settings.call_settings import CallSettings
from rayorch_flows.orchestration.settings.ingest_parameters import IngestParameters
from rayorch_flows.orchestration.settings.places import Places, find_places
from rayorch_flows.records.planning import adopt, find_pending
from rayorch_flows.records.source import SourceItem, settled

LONGEST_S: Final = 3600.0
"""A sensor run ends after so long, whatever still arrives; the next one goes on."""


class Look(BaseModel):
    """One look at a source: whether something settled is not in the table, and when the rest will have settled."""

    listed: int
    pending: bool
    unsettled: int
    settled_in_s: float = 0.0


@flow(name="watch-source", persist_result=False)
@in_one_message
async def watch_source(
    source: str,
    table: str,
    flow: str = "pdf",
    settle_s: float = 30.0,
    microbatch_size: int = 32,
    concurrency: int = 2,
    deployment: str | None = None,
    cluster: str | None = None,
    engine: str | dict[str, CallSettings] | None = None,
) -> int:
    """Ingest what has arrived and settled, until nothing is left to do; return how many ingests that took.

    Args:
        source: The folder, glob or URI to look at, or corpus-source/NAME.
        table: The record table, a folder, a URI, or record-table/NAME.
        flow: The flow definition, by the name of an installed one or as path.py:NAME.
        settle_s: A file counts when it has not changed for so many seconds.
        microbatch_size: The most source items that go into one microbatch.
        concurrency: How many microbatches run at once.
        deployment: Run microbatches as runs of this deployment (flow/name).
        cluster: The Ray cluster, host:port or ray-cluster/NAME; without it RAY_ADDRESS, or an embedded cluster.
        engine: Settings by Call, or engine-settings/NAME.
    """
    asked = IngestParameters.checked(
        source=source,
        table=table,
        flow=flow,
        settle_s=settle_s,
        microbatch_size=microbatch_size,
        concurrency=concurrency,
        deployment=deployment,
        cluster=cluster,
        engine=engine,
    )
    logger = get_run_logger()
    deadline = time.monotonic() + LONGEST_S
    prepared = await asyncio.to_thread(prepare, flow)
    run: Any = ingest
    ingests = 0
    while True:
        places = await find_places(table, source, cluster, engine)
        seen = await asyncio.to_thread(look, places, prepared, settle_s)
        if seen.pending:
            ingests += 1
            summary = await run(**asked.flow_arguments())
            if not isinstance(summary, IngestSummary) or not summary.done:
                return ingests
        elif not seen.unsettled or time.monotonic() + seen.settled_in_s > deadline:
            logger.info("%s sources, nothing new that has settled", seen.listed)
            return ingests
        else:
            logger.info("%s new sources have not settled yet", seen.unsettled)
            await asyncio.sleep(seen.settled_in_s)
        if time.monotonic() > deadline:
            return ingests


def look(places: Places, prepared: PreparedFlow, settle_s: float) -> Look:
    """List the source and compare it with the table. Blocking; writes nothing."""
    record_table = record_table_of(places.table, prepared)
    items = list_place(places.source, prepared, problems=[])
    known = record_table.known(prepared.fingerprint)
    quiet = settled(items, settle_s)
    pending = find_pending(quiet, known, limit=1, storage_options=places.source.options)
    unfinished = adopt(record_table.manifests(prepared.fingerprint).unfinished(), items, known)
    restless = _new(set(items).difference(quiet), known)
    now = datetime.now(UTC)
    waits = [
        (item.modified_at + timedelta(seconds=settle_s) - now).total_seconds()
        for item in restless
        if item.modified_at is not None
    ]
    return Look(
        listed=len(items),
        pending=bool(pending.items or unfinished.resume or unfinished.stale),
        unsettled=len(restless),
        settled_in_s=min(max(0.5, max(waits, default=0.0) + 0.1), settle_s + 0.5),
    )


def _new(items: set[SourceItem], known: Any) -> list[SourceItem]:
    """Those that the table does not hold as they are now, by size and time."""
    if not items:
        return []
    held = set(zip(*(known[name].to_pylist() for name in ("uri", "size", "modified_at")), strict=True))
    return [item for item in items if (item.uri, item.size, item.modified_at) not in held]
