"""The one Prefect task of a microbatch: a thin client of the engine, on a Ray worker.

It attaches the microbatch to its engine host, polls (the polls are the heartbeats that keep the microbatch alive), and
keeps the progress artifact of its flow run up to date, at a pace that does not depend on the number of children.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import cloudpickle
from prefect import get_run_logger, task
from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.cache_policies import NO_CACHE

from rayorch_flows.orchestration.reporting import progress
from rayorch_flows.orchestration.reporting.progress import Part

if TYPE_CHECKING:
    from uuid import UUID

    from rayorch_flows.program.outcomes import Cause
    from rayorch_flows.program.plan import Plan
    from rayorch_flows.runtime.host.client import MicrobatchProgress, MicrobatchSpec

POLL_S: Final = 1.0
ARTIFACT_EVERY_S: Final = 4.0
LOG_EVERY_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """What the task needs, sent as one opaque value so that nothing of it shows up in the Prefect API."""

    plan: Plan
    namespace: str
    spec: MicrobatchSpec
    runtime_env: dict[str, Any] | None
    child_noun: str
    staged: int


@dataclass(frozen=True, slots=True)
class EngineResult:
    """How the engine left the microbatch."""

    state: str
    error: Cause | None
    calls: tuple[Any, ...]
    engine_s: float


@task(name="run in engine", task_run_name="engine", cache_policy=NO_CACHE, persist_result=False, retries=0)
def run_in_engine(request: bytes) -> EngineResult:
    """Attach to the engine host and stay until the microbatch is terminal."""
    from rayorch_flows.runtime.host import client as host

    asked: EngineRequest = cloudpickle.loads(request)
    logger = get_run_logger()
    client = host.connect(asked.plan, namespace=asked.namespace, runtime_env=asked.runtime_env)
    attachment = client.attach(asked.spec)
    logger.info(
        "%s engine attempt %s with %s sources",
        "Joined" if attachment.joined else "Started",
        attachment.attempt,
        len(asked.spec.rows),
    )
    shown = ShownProgress(asked)
    while True:
        state = client.poll(asked.spec.id, timeout_s=POLL_S)
        final = state.state in ("done", "aborted", "cancelled")
        shown.update(state, final=final)
        if final:
            return EngineResult(state.state, state.error, tuple(state.calls), state.elapsed_s)


class ShownProgress:
    """The progress artifact and the log lines of one running microbatch."""

    def __init__(self, asked: EngineRequest) -> None:
        self._asked = asked
        self._logger = get_run_logger()
        self._began = self._logged = time.monotonic()
        self._updated = 0.0
        self._artifact: UUID | None = None
        self._show(0.0, "starting")

    def update(self, state: MicrobatchProgress, *, final: bool) -> None:
        now = time.monotonic()
        if not final and now - self._updated < ARTIFACT_EVERY_S:
            return
        self._updated = now
        part = part_of(state, self._asked.staged)
        words = progress.describe(part, now - self._began, self._asked.child_noun)
        self._show(100.0 if final else progress.percent(part), f"{state.state}: {words}")
        if final or now - self._logged >= LOG_EVERY_S:
            self._logged = now
            self._logger.info("%s: %s", state.state.capitalize(), words)

    def _show(self, percent: float, words: str) -> None:
        """A server that is away costs an update, not the microbatch."""
        with contextlib.suppress(Exception):
            if self._artifact is None:
                self._artifact = cast("UUID", create_progress_artifact(percent, description=words))
            else:
                update_progress_artifact(self._artifact, percent, description=words)


def part_of(state: MicrobatchProgress, staged: int) -> Part:
    """The engine's progress with the sources that earlier attempts have staged."""
    return Part(
        sources=state.sources_total + staged,
        done=state.sources_done + staged,
        failed=state.sources_failed,
        children=state.children_done,
        children_failed=state.children_failed,
    )
