"""The reconciler: finds what a killed process left standing in the Prefect server and in the engine, and ends it.

A process that is SIGKILLed cannot say so: its flow run and its task run stay "Running" for ever, or "Pending" if the
worker went before the process began. Flow runs send heartbeats; one that has been silent for too long is crashed, or
cancelled if that is what it was told. A crashed run of a deployment is scheduled again, a bounded number of times: it
finds its manifest and what is staged, and redoes nothing that is finished.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from prefect import flow, get_client, get_run_logger
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import (
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterId,
    FlowRunFilterParentFlowRunId,
    FlowRunFilterState,
    FlowRunFilterStateType,
    TaskRunFilter,
    TaskRunFilterState,
    TaskRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, StateType, TaskRun
from prefect.runtime import flow_run as current_flow_run
from prefect.states import AwaitingRetry, Cancelled, Crashed
from pydantic import BaseModel, Field

from rayorch_flows.orchestration.cluster import engine_hosts as engines
from rayorch_flows.orchestration.server.flow_states import in_one_message
from rayorch_flows.orchestration.settings.home import given_ray_address
from rayorch_flows.orchestration.settings.places import ClusterPlace, cluster_place

FLOWS: Final = ("ingest", "ingest-microbatch", "watch-source", "reconcile")
RESUBMITTED: Final = ("ingest-microbatch", "ingest")
"""Microbatches first: an ingest that runs again finds them scheduled, and waits for them."""
_HEARTBEAT: Final = "prefect.flow-run.heartbeat"
_SETTLED_S: Final = 15.0
"""A worker reports a crash twice, seconds apart; the second report must not meet the next run."""
_OPEN: Final = [StateType.RUNNING, StateType.CANCELLING, StateType.PENDING]
_PAGE: Final = 200


class Reconciled(BaseModel):
    """What the reconciler did, by run id, or microbatch id for ``engine_cancelled``."""

    crashed: list[str] = Field(default_factory=list[str])
    cancelled: list[str] = Field(default_factory=list[str])
    task_runs: list[str] = Field(default_factory=list[str])
    resubmitted: list[str] = Field(default_factory=list[str])
    given_up: list[str] = Field(default_factory=list[str])
    engine_cancelled: list[str] = Field(default_factory=list[str])


@flow(name="reconcile", persist_result=False)
@in_one_message
async def reconcile(
    silent_s: float = 450.0, resubmissions: int = 3, horizon_h: float = 24.0, cluster: str | None = None
) -> Reconciled:
    """Crash silent runs, finish their task runs, cancel engine work that nobody waits for, run what crashed again.

    Args:
        silent_s: A flow run without a heartbeat for so many seconds is taken for dead. Flow runs send one every 180 s,
            or as PREFECT_FLOWS_HEARTBEAT_FREQUENCY says: keep this well above.
        resubmissions: How often a run of a deployment that crashes is scheduled again.
        horizon_h: Look at runs that were made within the last so many hours.
        cluster: The Ray cluster whose engine to look at, host:port or ray-cluster/NAME; without it RAY_ADDRESS.
    """
    logger = get_run_logger()
    done = Reconciled()
    since = datetime.now(UTC) - timedelta(hours=horizon_h)
    async with get_client() as client:
        for run in await _runs(client, _OPEN, since):
            if str(run.id) != current_flow_run.id and await _silent(client, run, silent_s):
                await _end(client, run, silent_s, done)
                logger.info("%s is dead", run.name)
        crashed = [run for run in await _runs(client, [StateType.CRASHED], since) if _may_run_again(run, done)]
        done.task_runs = await _finish_task_runs(client)
        flows = {each.id: each.name for each in await client.read_flows()}
        for name in RESUBMITTED:
            for run in crashed:
                if flows.get(run.flow_id) == name:
                    await _resubmit(client, run, resubmissions, done)
        living = await _runs(client, [*_OPEN, StateType.SCHEDULED], since)
        waited_for = {str(run.parameters.get("microbatch")) for run in living}
    place = await cluster_place(cluster)
    if place is not None or given_ray_address() is not None:
        done.engine_cancelled = await asyncio.to_thread(_cancel_orphans, place, waited_for)
    for name, values in done:
        if values:
            logger.info("%s: %s", name.replace("_", " "), ", ".join(values))
    return done


async def _runs(client: PrefectClient, states: list[StateType], since: datetime) -> list[FlowRun]:
    """Runs of our flows in these states."""
    found = await _all_runs(
        client,
        flow_filter=FlowFilter(name=FlowFilterName(any_=list(FLOWS))),
        flow_run_filter=FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=states))),
    )
    return [run for run in found if run.created is None or run.created >= since]


async def _all_runs(client: PrefectClient, **filters: Any) -> list[FlowRun]:
    found: list[FlowRun] = []
    while True:
        page = await client.read_flow_runs(**filters, limit=_PAGE, offset=len(found))
        found += page
        if len(page) < _PAGE:
            return found


async def _silent(client: PrefectClient, run: FlowRun, silent_s: float) -> bool:
    """Whether the run has neither begun nor sent a heartbeat for so long."""
    now = datetime.now(UTC)
    if run.state is None or (now - run.state.timestamp).total_seconds() < silent_s:
        return False
    events = await _last_heartbeats(client, run.id)
    return not any((now - at).total_seconds() < silent_s for at in events)


async def _last_heartbeats(client: PrefectClient, run: UUID) -> list[datetime]:
    answer = await client.request(
        "POST",
        "/events/filter",
        json={
            "filter": {
                "event": {"name": [_HEARTBEAT]},
                "resource": {"id": [f"prefect.flow-run.{run}"]},
                "order": "DESC",
            },
            "limit": 1,
        },
    )
    found: list[dict[str, Any]] = answer.json()["events"]
    return [datetime.fromisoformat(event["occurred"]) for event in found]


async def _end(client: PrefectClient, run: FlowRun, silent_s: float, done: Reconciled) -> None:
    """Crash the run; one that somebody has cancelled is cancelled, and so does not run again."""
    message = f"No heartbeat for {silent_s:.0f} s: its process is gone."
    cancelled = run.state_type is StateType.CANCELLING
    state = Cancelled(message=message) if cancelled else Crashed(message=message)
    await client.set_flow_run_state(run.id, state, force=True)
    (done.cancelled if cancelled else done.crashed).append(str(run.id))


async def _finish_task_runs(client: PrefectClient) -> list[str]:
    """Task runs that still run under a flow run that does not any more."""
    tasks: list[TaskRun] = await client.read_task_runs(
        flow_filter=FlowFilter(name=FlowFilterName(any_=list(FLOWS))),
        task_run_filter=TaskRunFilter(
            state=TaskRunFilterState(type=TaskRunFilterStateType(any_=[StateType.RUNNING, StateType.PENDING]))
        ),
        limit=_PAGE,
    )
    owners = {task.flow_run_id for task in tasks if task.flow_run_id is not None}
    if not owners:
        return []
    runs = await client.read_flow_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=list(owners))))
    over = {run.id for run in runs if run.state is not None and run.state.is_final()}
    finished: list[str] = []
    for task in tasks:
        if task.flow_run_id in over:
            await client.set_task_run_state(
                task.id, Crashed(message="Its flow run is over: its process is gone."), force=True
            )
            finished.append(str(task.id))
    return finished


def _may_run_again(run: FlowRun, done: Reconciled) -> bool:
    """Whether a worker can take the crashed run, and nobody will report its crash any more."""
    settled = run.state is not None and (datetime.now(UTC) - run.state.timestamp).total_seconds() > _SETTLED_S
    return run.deployment_id is not None and (settled or str(run.id) in done.crashed)


async def _resubmit(client: PrefectClient, run: FlowRun, most: int, done: Reconciled) -> None:
    """Schedule a crashed run of a deployment again, unless its ingest lives and does that itself, or has done it."""
    crashes = sum(state.is_crashed() for state in await client.read_flow_run_states(run.id))
    if crashes > most:
        done.given_up.append(str(run.id))
        return
    if run.parent_task_run_id is not None and await _parent_cares(client, run, run.parent_task_run_id):
        return
    state = AwaitingRetry(scheduled_time=datetime.now(UTC), message=f"Crashed; run {crashes + 1} of at most {most + 1}")
    await client.set_flow_run_state(run.id, state, force=True)
    done.resubmitted.append(str(run.id))


async def _parent_cares(client: PrefectClient, run: FlowRun, task_run: UUID) -> bool:
    """Whether the ingest lives, or has started another run of the microbatch."""
    task = await client.read_task_run(task_run)
    if task.flow_run_id is None:
        return False
    parent = await client.read_flow_run(task.flow_run_id)
    if parent.state is not None and not parent.state.is_final():
        return True
    children = FlowRunFilter(parent_flow_run_id=FlowRunFilterParentFlowRunId(any_=[parent.id]))
    return any(
        child.parameters.get("microbatch") == run.parameters.get("microbatch")
        and child.created is not None
        and run.created is not None
        and child.created > run.created
        for child in await _all_runs(client, flow_run_filter=children)
    )


def _cancel_orphans(place: ClusterPlace | None, waited_for: set[str]) -> list[str]:
    """Cancel microbatches in engine hosts for which there is no flow run any more and that nobody polls.

    One that is polled belongs to somebody: to a flow run that has just begun, or to one of another server.
    """
    import ray

    engines.connect_to_running(place)
    cancelled: list[str] = []
    for view in engines.hosts():
        for microbatch in view.paused:
            if microbatch not in waited_for:
                ray.get(engines.actor(view.host).cancel.remote(microbatch), timeout=engines.ANSWER_S * 4)
                cancelled.append(microbatch)
    return cancelled
