"""The microbatches of an ingest, each a flow run: in this process, or as runs of a deployment."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from rayorch_flows.orchestration.ingest.deployed_runs import run_deployed
from rayorch_flows.orchestration.ingest.microbatch_flow import MicrobatchFailed, ingest_microbatch
from rayorch_flows.orchestration.ingest.stop_requests import CANCELLED, Family, watched
from rayorch_flows.orchestration.ingest.stored_microbatch import find_committed
from rayorch_flows.orchestration.reporting.exception_text import gist
from rayorch_flows.orchestration.reporting.progress import Board, finished_part
from rayorch_flows.orchestration.reporting.run_log import RunLog
from rayorch_flows.orchestration.reporting.summary import MicrobatchSummary
from rayorch_flows.orchestration.server.outage import patiently
from rayorch_flows.orchestration.settings.ingest_parameters import IngestParameters
from rayorch_flows.records.manifest import Manifest
from rayorch_flows.records.table import RecordTable


@dataclass(frozen=True, slots=True)
class MicrobatchRuns:
    """How the microbatches of one ingest are run. Unless ``asked`` names a deployment they run in this process."""

    table: RecordTable
    asked: IngestParameters
    log: RunLog
    board: Board

    async def run(self, manifests: list[Manifest], parent: UUID) -> tuple[list[MicrobatchSummary], bool]:
        """Run them all, no more than ``asked.concurrency`` at once; also say whether somebody cancelled the ingest.

        When one finds that the Pipeline cannot run here, those behind it are not started.
        """
        turns = asyncio.Semaphore(self.asked.concurrency)
        async with watched(parent) as family:
            unavailable: list[str] = []

            async def run(manifest: Manifest) -> MicrobatchSummary:
                async with turns:
                    if unavailable:
                        return _without_result(manifest, unavailable[0])
                    part = await self._one(manifest, family)
                self.log.microbatch(part)
                if part.unavailable:
                    unavailable.append(part.error)
                return part

            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(run(manifest)) for manifest in manifests]
            return [task.result() for task in tasks], family.stopping

    async def _one(self, manifest: Manifest, family: Family) -> MicrobatchSummary:
        if family.stopping:
            return _without_result(manifest, CANCELLED)
        try:
            if self.asked.deployment is None:
                return await self._here(manifest)
            part = await self._there(self.asked.deployment, manifest, family)
        except Exception as error:
            part = await asyncio.to_thread(self._as_it_lies, manifest, gist(error))
        self.board.update(part.microbatch, finished_part(part))
        return part

    async def _there(self, deployment: str, manifest: Manifest, family: Family) -> MicrobatchSummary:
        """As a run of the deployment, which is cancelled when the ingest is."""
        running = asyncio.create_task(run_deployed(deployment, self.table, manifest, self._arguments(manifest)))
        stop = asyncio.create_task(family.asked.wait())
        try:
            await asyncio.wait({running, stop}, return_when=asyncio.FIRST_COMPLETED)
            return await running if running.done() else _without_result(manifest, CANCELLED)
        finally:
            stop.cancel()
            if not running.done():
                running.cancel()
                await asyncio.wait({running})

    async def _here(self, manifest: Manifest) -> MicrobatchSummary:
        run: Any = ingest_microbatch
        # Prefect itself waits a minute to begin or end a run; to run what has committed again only finds it committed
        state: Any = await patiently(run, **self._arguments(manifest), return_state=True)
        if state.is_cancelled():
            return _without_result(manifest, CANCELLED)
        result: Any = await state.aresult(raise_on_failure=False)
        if isinstance(result, MicrobatchFailed):
            return result.summary
        if isinstance(result, MicrobatchSummary):
            return result
        return await asyncio.to_thread(self._as_it_lies, manifest, gist(result))

    def _arguments(self, manifest: Manifest) -> dict[str, Any]:
        return self.asked.microbatch_arguments(self.table.uri, manifest.microbatch_id)

    def _as_it_lies(self, manifest: Manifest, error: str) -> MicrobatchSummary:
        """Of a flow run that ended without a summary: it may have committed before the server was away."""
        noun = self.board.child_noun
        found = find_committed(self.table, manifest.semantic_fingerprint, manifest.microbatch_id, noun)
        if found is None:
            return _without_result(manifest, error)
        found.error = error
        return found


def _without_result(manifest: Manifest, error: str) -> MicrobatchSummary:
    return MicrobatchSummary(microbatch=manifest.microbatch_id, sources=len(manifest.sources), error=error)
