"""Microbatches as runs of a deployment: a process of their own each, started by a worker.

A microbatch's runs are numbered, and the number is part of the idempotency key: whoever asks for the same number of the
same microbatch, this ingest, one that was killed, or the reconciler, gets the same flow run.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun
from prefect.deployments import arun_deployment
from prefect.flow_runs import wait_for_flow_run
from prefect.states import Cancelling

from rayorch_flows.orchestration.summary import MicrobatchSummary
from rayorch_flows.orchestration.unit import take_summary
from rayorch_flows.records.manifest import Manifest
from rayorch_flows.records.table import RecordTable

SUBMISSIONS: Final = 3
"""How many runs of a microbatch one ingest starts when they crash."""
_MOST: Final = 1000
_POLL_S: Final = 2


def idempotency_key(table: str, manifest: Manifest, number: int) -> str:
    content = f"{table} {manifest.semantic_fingerprint} {manifest.microbatch_id} {number}"
    return "rayorch-" + hashlib.blake2b(content.encode(), digest_size=16).hexdigest()


async def run_deployed(
    deployment: str, table: RecordTable, manifest: Manifest, parameters: dict[str, Any]
) -> MicrobatchSummary:
    """Run the microbatch as a run of ``deployment`` and wait for it; start it again if it crashes."""
    asked_at = datetime.now(UTC)
    started = 0
    run: FlowRun | None = None
    for number in range(1, _MOST):
        run = await arun_deployment(
            deployment,
            parameters={**parameters, "microbatch": manifest.microbatch_id},
            idempotency_key=idempotency_key(table.uri, manifest, number),
            timeout=0,
        )
        if run.created is not None and run.created < asked_at and run.state is not None and run.state.is_final():
            continue  # of an ingest before this one
        started += 1
        run = await _finished(run.id)
        state = run.state
        if state is None or not state.is_crashed() or started >= SUBMISSIONS:
            break
    summary = await asyncio.to_thread(take_summary, table, manifest.microbatch_id)
    if summary is None:
        summary = MicrobatchSummary(microbatch=manifest.microbatch_id, sources=len(manifest.sources))
        state = None if run is None else run.state
        summary.error = "" if state is None else f"{state.name}: {state.message or 'no message'}"
    if run is not None:
        summary.flow_run_id = str(run.id)
    return summary


async def _finished(run: UUID) -> FlowRun:
    """Wait for the run; if this flow run is cancelled, so is that one."""
    try:
        return await wait_for_flow_run(run, timeout=None, poll_interval=_POLL_S)
    except asyncio.CancelledError:
        with contextlib.suppress(Exception):
            async with get_client() as client:
                await client.set_flow_run_state(run, Cancelling(message="its ingest was cancelled"))
        raise
