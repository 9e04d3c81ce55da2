"""Kills, a cancellation and a server restart in the middle of ingests: what they end in, and what is done twice."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.cli.counted import AT_THE_ACTOR, LINES, OTHER, Corpus
from tests.cli.lab import PATIENCE_S, ROOT, Lab, a_lab
from tests.cli.pool import (
    OPEN,
    Worker,
    a_worker,
    cancel,
    deployments,
    environment,
    finished,
    flow_processes,
    kill_flow_processes,
    microbatches,
    run_of,
    start,
    until,
)

pytestmark = [pytest.mark.prefect, pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def lab() -> Generator[Lab]:
    """A server that the environment names, and a cluster."""
    with a_lab(shared=True, given_server=True) as lab:
        yield lab


@pytest.fixture(scope="module")
def worker(lab: Lab) -> Generator[Worker]:
    with a_worker(lab) as worker:
        for each in deployments(lab).values():
            lab.api(f"deployments/{each['id']}/pause_deployment")
        yield worker


@pytest.fixture(autouse=True)
def clean(lab: Lab, worker: Worker) -> Generator[None]:
    """Whatever a test leaves when it fails is not in the way of the next one."""
    yield
    for allowed in lab.directory.glob(f"{lab.log.name}.*"):
        allowed.unlink()
    kill_flow_processes(lab)
    for run in lab.api("flow_runs/filter", {"flow_runs": {"state": {"type": {"any_": list(OPEN)}}}}):
        lab.api(f"flow_runs/{run['id']}/set_state", {"state": {"type": "CANCELLED"}, "force": True})
    if worker.process.poll() is not None:
        worker.start()


def by_microbatch(lab: Lab, corpus: Corpus) -> dict[str, dict[str, Any]]:
    """The latest flow run of each microbatch."""
    return {run["parameters"]["microbatch"]: run for run in microbatches(lab, corpus.table)}


def reconciled(lab: Lab, **parameters: Any) -> Any:
    """Run the reconciler in this process, where there is no cluster."""
    from prefect.settings import PREFECT_API_URL, temporary_settings

    from rayorch_flows.orchestration.upkeep.reconciler import reconcile

    run: Any = reconcile
    with temporary_settings({PREFECT_API_URL: lab.api_url}):
        return asyncio.run(run(**parameters))


def expect_nothing_runs(lab: Lab, worker: Worker) -> None:
    """No flow run runs any more, and no task run under a flow run that is over; task runs say so late, by events."""
    running = {"state": {"type": {"any_": ["RUNNING", "PENDING", "CANCELLING"]}}}
    until(lambda: not lab.api("flow_runs/filter", {"flow_runs": running}), worker)
    until(lambda: not lab.api("task_runs/filter", {"task_runs": running}), worker)


def test_a_killed_microbatch_runs_again_a_cancelled_one_stops_and_a_third_notices_neither(
    lab: Lab, worker: Worker
) -> None:
    corpus = Corpus(lab, "three", 24)
    run = corpus.deployed(8, concurrency=3)
    until(lambda: corpus.staged() and corpus.begun(), worker)
    runs = by_microbatch(lab, corpus)
    killed = next(each for each in runs if corpus.staged(each))
    kept = corpus.staged(killed)
    (process,) = flow_processes(lab, runs[killed])
    os.kill(process, signal.SIGKILL)

    corpus.allow((8 + 2) * LINES)  # all of the killed one's, and the next is in the middle
    until(lambda: any(corpus.staged(each) for each in runs if each != killed), worker)
    cancelled = next(each for each in runs if each != killed and corpus.staged(each))
    (third,) = set(runs) - {killed, cancelled}
    cancel(lab, runs[cancelled], worker)
    staged = corpus.staged(cancelled)
    assert staged, "what was finished is not kept"
    theirs = corpus.sources(cancelled)
    seen = corpus.count(theirs)
    states = [host["microbatches"][cancelled] for host in lab.engines() if cancelled in host["microbatches"]]
    assert states == ["cancelled"]

    corpus.hurry()
    ended = finished(lab, run)
    assert ended["state_type"] == "FAILED"
    assert "8 of 24 sources are not in the table" in ended["state"]["message"]
    assert corpus.count(theirs) <= seen + AT_THE_ACTOR, "the engine went on with cancelled work"
    ends = [(each["parameters"]["microbatch"], each["state_type"]) for each in microbatches(lab, corpus.table)]
    expected = [(killed, "CRASHED"), (killed, "COMPLETED"), (cancelled, "CANCELLED"), (third, "COMPLETED")]
    assert sorted(ends) == sorted(expected)
    again = corpus.command(8).finish()
    assert again.status == 0, again.output
    assert (again.summary["present"], again.summary["unchanged"]) == (8, 16)
    corpus.expect_complete()
    corpus.expect_done_once(kept | staged | (set(corpus.stems) - theirs))
    done = reconciled(lab)
    assert done.task_runs, "the killed process's task run is not found"
    assert not done.resubmitted, "the ingest has seen to it"
    expect_nothing_runs(lab, worker)


def test_a_server_restart_costs_neither_a_deployed_ingest_nor_a_command_anything(lab: Lab, worker: Worker) -> None:
    """Both are in the middle when the server goes; the engine is done with the command before it is back."""
    far, near = Corpus(lab, "far", 8), Corpus(lab, "near", 8)
    run = far.deployed(4)
    command = near.command(4, flow=OTHER)
    for corpus, who in ((near, command), (far, worker)):
        until(corpus.staged, who)
        until(corpus.begun, who)
    lease = run_of(lab, run)["state"]["state_details"]["deployment_concurrency_lease_id"]
    assert lab.server is not None
    lab.server.stop()
    try:
        near.hurry()
        until(near.ran, command)
    finally:
        lab.server.start()
        lab.server.wait_answer()
    lab.api(f"v2/concurrency_limits/leases/{lease}/renew", {"lease_duration": 300})
    far.hurry()
    ended = command.finish()
    assert ended.status == 0, ended.output
    assert finished(lab, run)["state_type"] == "COMPLETED", worker.tail()
    for corpus in (far, near):
        corpus.expect_complete()
        corpus.expect_done_once(set(corpus.stems))
        assert {each["state_type"] for each in by_microbatch(lab, corpus).values()} == {"COMPLETED"}
    reconciled(lab)
    expect_nothing_runs(lab, worker)


def test_a_worker_killed_with_all_its_flow_runs_costs_no_finished_parent(lab: Lab, worker: Worker) -> None:
    """The first time with all its processes, as when its service or machine goes; the second time alone: then the flow
    runs go on, and can still be cancelled."""
    corpus = Corpus(lab, "night", 8)
    run = corpus.deployed(4)
    until(corpus.staged, worker)
    until(corpus.begun, worker)
    until(lambda: [each["state_type"] for each in microbatches(lab, corpus.table)] == ["RUNNING"] * 2, worker)
    kept = corpus.staged()
    worker.kill()
    kill_flow_processes(lab)
    worker.start()
    pass_ = finished(lab, start(lab, "reconcile", silent_s=3, resubmissions=2))
    assert pass_["state_type"] == "COMPLETED"
    again = [run, *by_microbatch(lab, corpus).values()]
    until(lambda: all(run_of(lab, each)["state_type"] == "RUNNING" for each in again), worker)
    worker.kill()
    cancelled = again[1]
    cancel(lab, cancelled, worker)
    corpus.hurry()
    ended = finished(lab, run)
    assert (ended["state_type"], ended["run_count"]) == ("FAILED", 2), ended["state"]
    assert "4 of 8 sources are not in the table: cancelled" in ended["state"]["message"]
    runs = [(each["state_type"], each["run_count"]) for each in microbatches(lab, corpus.table)]
    assert sorted(runs) == [("CANCELLED", 2), ("COMPLETED", 2)]
    worker.start()
    again_later = corpus.command(4).finish()
    assert again_later.status == 0, again_later.output
    corpus.expect_complete()
    corpus.expect_done_once(kept)
    reconciled(lab)
    expect_nothing_runs(lab, worker)


def test_the_reconciler_cancels_engine_work_that_nobody_waits_for(lab: Lab, worker: Worker) -> None:
    folder = lab.corpus("orphaned", **{f"o{n}": "\n".join(f"line {m}" for m in range(20)) for n in range(4)})
    later = {"type": "SCHEDULED", "state_details": {"scheduled_time": str(datetime.now(UTC) + timedelta(hours=1))}}
    parameters = {"table": "none", "flow": "none", "microbatch": "awaited"}
    deployment = deployments(lab)["ingest-microbatch"]["id"]
    lab.api(f"deployments/{deployment}/create_flow_run", {"parameters": parameters, "state": later})
    done = subprocess.run(
        [sys.executable, "-m", "tests.cli.orphans", str(folder)],
        env=environment(lab) | {"RAYORCH_TOY_DELAY": "5"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["cancelled"] == ["orphan"]
    assert answer["states"] == {"orphan": "cancelled", "awaited": "paused", "polled": "running"}


def test_a_dead_run_is_ended_as_it_should_and_runs_again_a_bounded_number_of_times(lab: Lab, worker: Worker) -> None:
    """Runs without a process, of a deployment that no worker looks at."""
    flows = {each["name"]: each["id"] for each in lab.api("flows/filter")}
    nowhere = lab.api("deployments/", {"name": "nowhere", "flow_id": flows["ingest-microbatch"]})["id"]

    def become(run: dict[str, Any], state: str) -> None:
        lab.api(f"flow_runs/{run['id']}/set_state", {"state": {"type": state}, "force": True})

    def states(*runs: dict[str, Any]) -> list[str]:
        return [run_of(lab, run)["state_type"] for run in runs]

    begun, never_begun, cancelled = (lab.api(f"deployments/{nowhere}/create_flow_run") for _ in range(3))
    itself = lab.api("flow_runs/", {"flow_id": flows["reconcile"]})
    for _ in range(2):
        become(begun, "RUNNING")
        become(never_begun, "PENDING")
        become(itself, "RUNNING")
        become(cancelled, "RUNNING")
        become(cancelled, "CANCELLING")
        time.sleep(0.5)
        done = reconciled(lab, silent_s=0.4, resubmissions=2)
        assert sorted(done.resubmitted) == sorted([begun["id"], never_begun["id"]])
        assert done.cancelled == [cancelled["id"]]
        assert states(begun, never_begun, cancelled, itself) == ["SCHEDULED", "SCHEDULED", "CANCELLED", "CRASHED"]
    become(begun, "RUNNING")
    become(never_begun, "PENDING")
    time.sleep(0.5)
    done = reconciled(lab, silent_s=0.4, resubmissions=2)
    assert {begun["id"], never_begun["id"]} <= set(done.given_up)
    assert not done.resubmitted
    assert states(begun, never_begun) == ["CRASHED", "CRASHED"]
