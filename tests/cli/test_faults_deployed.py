"""Kills, a cancellation and a server restart in the middle of ingests: what they end in, and what is done twice."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from rayorch_flows.orchestration import processes
from rayorch_flows.orchestration.prepared import prepare
from rayorch_flows.records.table import RecordTable
from tests.cli.lab import CANCELLED_S, PATIENCE_S, ROOT, Lab, Running, a_lab
from tests.cli.pool import (
    MICROBATCH_DEPLOYMENT,
    Worker,
    a_worker,
    deployments,
    environment,
    finished,
    flow_processes,
    microbatches,
    run_of,
    start,
    stems,
)

pytestmark = [pytest.mark.prefect, pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]

COUNTED = f"{ROOT}/tests/orchestration/counted_flow.py:FLOW"
OTHER = f"{ROOT}/tests/orchestration/counted_flow.py:OTHER"
LINES = 2
AT_THE_ACTOR = 4
"""Rows that an actor holds and will still see: the batch that it executes, and the next, of two rows each."""


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


class Corpus:
    """The sources of one test, its table, and what the flow's Functions did with them."""

    def __init__(self, lab: Lab, name: str, count: int) -> None:
        self.lab = lab
        self.stems = [f"{name}{number:02}" for number in range(count)]
        self.source = lab.corpus(name, **{s: "\n".join(f"{s} {n}" for n in range(LINES)) for s in self.stems})
        self.table = lab.directory / f"{name}-table"
        self.fingerprint = prepare(COUNTED).fingerprint
        self.pace = Path(f"{lab.log}.{name}")

    def hold(self) -> None:
        """No row goes on from here."""
        self._say("1000")

    def hurry(self) -> None:
        """No row takes time any more."""
        self._say("0")

    def _say(self, pace: str) -> None:
        new = self.pace.with_suffix(".new")
        new.write_text(pace)
        new.replace(self.pace)

    def ingest(self, size: int, **parameters: Any) -> dict[str, Any]:
        return start(
            self.lab,
            "ingest",
            source=str(self.source),
            table=str(self.table),
            flow=COUNTED,
            microbatch_size=size,
            deployment=MICROBATCH_DEPLOYMENT,
            **parameters,
        )

    def staged(self, microbatch: str | None = None) -> set[str]:
        """Sources that are finished and durable, of one microbatch or of all that have not committed."""
        if not (self.table / "_delta_log" / f"{0:020}.json").exists():
            return set()
        table = RecordTable.open(self.table)
        ids = table.manifests(self.fingerprint).ids() if microbatch is None else [microbatch]
        rows = [table.staging(self.fingerprint).read(each).rows["uri"].to_pylist() for each in ids]
        return {Path(uri).stem for part in rows for uri in part}

    def sources(self, microbatch: str) -> set[str]:
        manifest = RecordTable.open(self.table).manifests(self.fingerprint).read(microbatch)
        assert manifest is not None
        return {Path(uri).stem for uri in manifest.uris}

    def done(self, stem: str) -> Counter[str]:
        """The rows of this source that Functions have seen."""
        lines = [line.lower() for line in self.lab.notes()]
        return Counter(line for line in lines if line.split()[1] == stem)

    def begun(self) -> bool:
        """Whether every microbatch is in the engine: its first Function has seen every source."""
        return all(self.done(stem)[f"read {stem}"] for stem in self.stems)

    def ran(self) -> bool:
        """Whether the last Function has seen every source."""
        return all(self.done(stem)[f"join {stem}"] for stem in self.stems)

    def count(self, which: set[str]) -> int:
        return sum(len(self.done(stem)) for stem in which)

    def expect_done_once(self, which: set[str]) -> None:
        for stem in which:
            once = [f"read {stem}", f"join {stem}", *(f"shout {stem} {n}" for n in range(LINES))]
            assert self.done(stem) == Counter(once), f"{stem} was finished, and something of it was done again"

    def expect_complete(self) -> None:
        """Exactly one row for every source."""
        assert stems(self.table) == self.stems
        assert set(RecordTable.open(self.table).rows(["outcome"])["outcome"].to_pylist()) == {"present"}


def until(condition: Callable[[], Any], who: Worker | Running) -> None:
    assert processes.wait_until(lambda: bool(condition()), PATIENCE_S / 2, 0.1), who.tail()


def by_microbatch(lab: Lab, corpus: Corpus) -> dict[str, dict[str, Any]]:
    """The latest flow run of each microbatch."""
    return {run["parameters"]["microbatch"]: run for run in microbatches(lab, corpus.table)}


def cancel(lab: Lab, worker: Worker, run: dict[str, Any]) -> None:
    """As the UI does it."""
    began = time.monotonic()
    lab.api(f"flow_runs/{run['id']}/set_state", {"state": {"type": "CANCELLING", "name": "Cancelling"}})
    until(lambda: run_of(lab, run)["state_type"] == "CANCELLED", worker)
    assert time.monotonic() - began < CANCELLED_S


def reconciled(lab: Lab, **parameters: Any) -> Any:
    """Run the reconciler in this process, where there is no cluster."""
    from prefect.settings import PREFECT_API_URL, temporary_settings

    from rayorch_flows.orchestration.reconcile import reconcile

    run: Any = reconcile
    with temporary_settings({PREFECT_API_URL: lab.api_url}):
        return asyncio.run(run(**parameters))


def expect_nothing_runs(lab: Lab) -> None:
    """No flow run runs any more, and no task run under a flow run that is over."""
    running = {"state": {"type": {"any_": ["RUNNING", "PENDING", "CANCELLING"]}}}
    assert not lab.api("flow_runs/filter", {"flow_runs": running})
    assert not lab.api("task_runs/filter", {"task_runs": running})


def test_a_killed_microbatch_runs_again_a_cancelled_one_stops_and_a_third_notices_neither(
    lab: Lab, worker: Worker
) -> None:
    corpus = Corpus(lab, "three", 12)
    run = corpus.ingest(4, concurrency=3)
    until(lambda: len(by_microbatch(lab, corpus)) == 3, worker)
    until(lambda: any(corpus.staged(each) for each in by_microbatch(lab, corpus)), worker)
    runs = by_microbatch(lab, corpus)
    killed = next(each for each in runs if corpus.staged(each))
    kept = corpus.staged(killed)
    (process,) = flow_processes(lab, runs[killed])
    os.kill(process, signal.SIGKILL)

    until(lambda: any(corpus.staged(each) for each in by_microbatch(lab, corpus) if each != killed), worker)
    runs = by_microbatch(lab, corpus)
    cancelled = next(each for each in runs if each != killed and corpus.staged(each))
    (third,) = set(runs) - {killed, cancelled}
    cancel(lab, worker, runs[cancelled])
    staged = corpus.staged(cancelled)
    assert staged, "what was finished is not kept"
    theirs = corpus.sources(cancelled)
    others = set(corpus.stems) - theirs
    seen, seen_of_others = corpus.count(theirs), corpus.count(others)
    hosts = [json.loads(line) for line in lab.run("engines", "--json").output.splitlines() if line.startswith("{")]
    assert [host["microbatches"].get(cancelled) for host in hosts] == ["cancelled"]
    until(lambda: corpus.count(others) > seen_of_others, worker)
    assert corpus.count(theirs) <= seen + AT_THE_ACTOR, "the engine goes on with cancelled work"

    corpus.hurry()
    ended = finished(lab, run)
    assert ended["state_type"] == "FAILED"
    assert "4 of 12 sources are not in the table" in ended["state"]["message"]
    ends = [(each["parameters"]["microbatch"], each["state_type"]) for each in microbatches(lab, corpus.table)]
    expected = [(killed, "CRASHED"), (killed, "COMPLETED"), (cancelled, "CANCELLED"), (third, "COMPLETED")]
    assert sorted(ends) == sorted(expected)
    again = lab.run("ingest", corpus.source, "--table", corpus.table, "--flow", COUNTED, "--json")
    assert again.status == 0, again.output
    assert (again.summary["present"], again.summary["unchanged"]) == (4, 8)
    corpus.expect_complete()
    corpus.expect_done_once(kept | staged | others)
    done = reconciled(lab)
    assert done.task_runs, "the killed process's task run is not found"
    assert not done.resubmitted, "the ingest has seen to it"
    expect_nothing_runs(lab)


def test_a_server_restart_costs_neither_a_deployed_ingest_nor_a_command_anything(lab: Lab, worker: Worker) -> None:
    """Both are in the middle when the server goes; the engine is done with the command before it is back."""
    far, near = Corpus(lab, "far", 8), Corpus(lab, "near", 8)
    run = far.ingest(4)
    command = lab.start(
        *("ingest", near.source, "--table", near.table, "--flow", OTHER, "--microbatch-size", "4", "--json")
    )
    for corpus, who in ((near, command), (far, worker)):
        until(corpus.staged, who)
        corpus.hold()
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
    expect_nothing_runs(lab)


def test_a_worker_killed_with_all_its_flow_runs_costs_no_finished_parent(lab: Lab, worker: Worker) -> None:
    """The first time with all its processes, as when its service or machine goes; the second time alone: then the flow
    runs go on, and can still be cancelled."""
    corpus = Corpus(lab, "night", 8)
    run = corpus.ingest(4)
    until(corpus.staged, worker)
    corpus.hold()
    until(corpus.begun, worker)
    until(lambda: [each["state_type"] for each in microbatches(lab, corpus.table)] == ["RUNNING"] * 2, worker)
    kept = corpus.staged()
    worker.kill()
    for process in flow_processes(lab):
        os.kill(process, signal.SIGKILL)
    worker.start()
    pass_ = finished(lab, start(lab, "reconcile", silent_s=3, resubmissions=2))
    assert pass_["state_type"] == "COMPLETED"
    again = [run, *by_microbatch(lab, corpus).values()]
    until(lambda: all(run_of(lab, each)["state_type"] == "RUNNING" for each in again), worker)
    worker.kill()
    cancelled = again[1]
    cancel(lab, worker, cancelled)
    corpus.hurry()
    ended = finished(lab, run)
    assert (ended["state_type"], ended["run_count"]) == ("FAILED", 2), ended["state"]
    assert "4 of 8 sources are not in the table: cancelled" in ended["state"]["message"]
    runs = [(each["state_type"], each["run_count"]) for each in microbatches(lab, corpus.table)]
    assert sorted(runs) == [("CANCELLED", 2), ("COMPLETED", 2)]
    worker.start()
    assert lab.run("ingest", corpus.source, "--table", corpus.table, "--flow", COUNTED).status == 0
    corpus.expect_complete()
    corpus.expect_done_once(kept)
    reconciled(lab)
    expect_nothing_runs(lab)


def test_the_reconciler_cancels_engine_work_that_nobody_waits_for(lab: Lab, worker: Worker) -> None:
    folder = lab.corpus("orphaned", **{f"o{n}": "\n".join(f"line {m}" for m in range(20)) for n in range(4)})
    later = {"type": "SCHEDULED", "state_details": {"scheduled_time": str(datetime.now(UTC) + timedelta(hours=1))}}
    parameters = {"table": "none", "flow": "none", "microbatch": "awaited"}
    deployment = deployments(lab)["ingest-microbatch"]["id"]
    lab.api(f"deployments/{deployment}/create_flow_run", {"parameters": parameters, "state": later})
    done = subprocess.run(
        [sys.executable, "-m", "tests.cli.orphans", str(folder)],
        env=environment(lab) | {"RAYORCH_TOY_DELAY": "0.5"},
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
