"""Microbatches as runs of a deployment: a process of their own each, started by a worker.

A microbatch's runs are numbered, and the number is part of the idempotency key: whoever asks for the same number of the
same microbatch, this ingest, or one that was killed and runs again, gets the same flow run. When a run crashes, the
next number has its turn: the crashed one is not scheduled again, because its worker reports a crash twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from typing import Any, Final
from uuid import UUID

from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterIdempotencyKey
from prefect.client.schemas.objects import FlowRun
from prefect.deployments import arun_deployment
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelling

from rayorch_flows.errors import UsageError
from rayorch_flows.orchestration.ingest.left_summaries import take_summary
from rayorch_flows.orchestration.reporting.summary import MicrobatchSummary
from rayorch_flows.orchestration.server.outage import patiently
from rayorch_flows.records.manifest import Manifest
from rayorch_flows.records.table import RecordTable

SUBMISSIONS: Final = 3
"""How many runs of a microbatch one ingest starts when they crash."""
_POLL_S: Final = 1.0


def idempotency_key(table: str, manifest: Manifest, number: int) -> str:
    content = f"{table} {manifest.semantic_fingerprint} {manifest.microbatch_id} {number}"
    return "rayorch-" + hashlib.blake2b(content.encode(), digest_size=16).hexdigest()


async def expect_deployment(deployment: str) -> None:
    """Fail clearly, before anything is written, if there is no such deployment."""
    async with get_client() as client:
        try:
            await patiently(client.read_deployment_by_name, deployment)
        except (ObjectNotFound, ValueError):
            raise UsageError(
                f"there is no deployment {deployment!r}",
                next_step="give it as flow/name; prefect deployment ls lists them, prefect deploy --all makes ours",
            ) from None


async def run_deployed(
    deployment: str, table: RecordTable, manifest: Manifest, arguments: dict[str, Any]
) -> MicrobatchSummary:
    """Run the microbatch as a run of ``deployment`` with these flow arguments and wait for it; again if it crashes."""
    async with get_client() as client:
        started = 0
        while True:
            run = await _submitted(client, deployment, table, manifest, arguments)
            run = await _finished(client, run.id)
            started += 1
            if run.state is None or not run.state.is_crashed() or started == SUBMISSIONS:
                break
    summary = await asyncio.to_thread(take_summary, table, manifest.microbatch_id)
    if summary is None:
        summary = MicrobatchSummary(microbatch=manifest.microbatch_id, sources=len(manifest.sources))
        summary.error = "" if run.state is None else f"{run.state.name}: {run.state.message or 'no message'}"
    summary.flow_run_id = str(run.id)
    return summary


async def _submitted(
    client: PrefectClient, deployment: str, table: RecordTable, manifest: Manifest, arguments: dict[str, Any]
) -> FlowRun:
    """The first numbered run that is not over: one that an ingest before this one has left, or a new one."""
    number = 0
    while True:
        number += 1
        key = idempotency_key(table.uri, manifest, number)
        wanted = FlowRunFilter(idempotency_key=FlowRunFilterIdempotencyKey(any_=[key]))
        found = await patiently(client.read_flow_runs, flow_run_filter=wanted)
        if not found:
            return await patiently(
                arun_deployment,
                deployment,
                parameters=arguments,
                idempotency_key=key,
                timeout=0,
            )
        if found[0].state is None or not found[0].state.is_final():
            return found[0]


async def _finished(client: PrefectClient, run: UUID) -> FlowRun:
    """Wait for the run; if this flow run is cancelled, so is that one.

    Asks again and again: waiting for an event would miss one that is sent while the server is away.
    """
    try:
        while True:
            found = await patiently(client.read_flow_run, run)
            if found.state is not None and found.state.is_final():
                return found
            await asyncio.sleep(_POLL_S)
    except asyncio.CancelledError:
        with contextlib.suppress(Exception):
            async with get_client() as fresh:
                await fresh.set_flow_run_state(run, Cancelling(message="its ingest was cancelled"))
        raise
