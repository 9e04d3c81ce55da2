"""Deployments on a real server and a real worker: scheduled, woken by events, killed, reconciled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from rayorch_flows.orchestration import processes, server
from rayorch_flows.records.table import RecordTable
from tests.cli.lab import PATIENCE_S, ROOT, TOY, Lab

pytestmark = [pytest.mark.prefect, pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]

FOUR = {"ingest", "ingest-microbatch", "watch-source", "reconcile"}


def environment(lab: Lab) -> dict[str, str]:
    state = server.read_state(lab.home)
    assert state is not None
    return (
        {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "RAY_"))}
        | lab.environment
        | {
            "PREFECT_API_URL": state.api_url,
            "PREFECT_HOME": str(lab.directory / "worker"),
            "PREFECT_WORKER_QUERY_SECONDS": "2",
            "PREFECT_RUNNER_POLL_FREQUENCY": "2",
            "PYTHONPATH": lab.environment.get("PYTHONPATH", str(ROOT)),
            "RAYORCH_FLOWS_HOME": str(lab.home.root),
            "RAYORCH_TOY_LOG": str(lab.log),
        }
    )


def prefect(lab: Lab, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "prefect", "--no-prompt", *arguments],
        env=environment(lab),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def deployed(lab: Lab) -> Generator[Lab]:
    """The four deployments, deployed twice, and a worker for them."""
    prefect(lab, "work-pool", "create", "rayorch", "--type", "process")
    prefect(lab, "deploy", "--all")
    prefect(lab, "deploy", "--all")
    log = lab.directory / "worker.log"
    with log.open("wb") as file:
        worker = subprocess.Popen(
            [sys.executable, "-m", "prefect", "worker", "start", "--pool", "rayorch"],
            env=environment(lab),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield lab
    finally:
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()


def deployments(lab: Lab) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in lab.api("deployments/filter")}


def start(lab: Lab, name: str, **parameters: Any) -> dict[str, Any]:
    return lab.api(
        f"deployments/{deployments(lab)[name]['id']}/create_flow_run",
        {"parameters": parameters, "state": {"type": "SCHEDULED"}},
    )


def run_of(lab: Lab, run: dict[str, Any]) -> dict[str, Any]:
    (found,) = lab.api("flow_runs/filter", {"flow_runs": {"id": {"any_": [run["id"]]}}})
    return found


def finished(lab: Lab, run: dict[str, Any]) -> dict[str, Any]:
    over = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
    done = processes.wait_until(lambda: run_of(lab, run)["state_type"] in over, PATIENCE_S, 0.5)
    assert done, (run_of(lab, run), (lab.directory / "worker.log").read_text()[-3000:])
    return run_of(lab, run)


def microbatches(lab: Lab, table: Path) -> list[dict[str, Any]]:
    runs = lab.api("flow_runs/filter", {"limit": 200})
    return [run for run in runs if run["parameters"].get("table") == str(table) and "microbatch" in run["parameters"]]


def stems(table: Path) -> list[str]:
    return sorted(Path(row["uri"]).stem for row in RecordTable.open(table).rows(["uri"]).to_pylist())


def test_deploying_twice_makes_no_duplicates(deployed: Lab) -> None:
    found = deployed.api("deployments/filter")
    assert sorted(each["name"] for each in found) == sorted(FOUR)
    for each in found:
        assert each["tags"] == ["rayorch"]
        assert each["work_pool_name"] == "rayorch"
        assert each["description"]
        described = each["parameter_openapi_schema"]["properties"]
        assert all(field.get("description") for field in described.values()), each["name"]
    automations = deployed.api("automations/filter")
    assert [each["name"] for each in automations] == ["wake watch-source"]
    named = deployments(deployed)
    assert named["reconcile"]["schedules"][0]["active"]
    assert named["watch-source"]["concurrency_options"]["collision_strategy"] == "CANCEL_NEW"


def test_microbatches_run_in_processes_of_their_own(deployed: Lab) -> None:
    source = deployed.corpus("far", **{f"f{n}": f"line {n}" for n in range(4)}, locked="ENCRYPTED")
    table = deployed.directory / "far-table"
    run = start(
        deployed,
        "ingest",
        source=str(source),
        table=str(table),
        flow=TOY,
        microbatch_size=3,
        deployment="ingest-microbatch/ingest-microbatch",
    )
    assert finished(deployed, run)["state_type"] == "COMPLETED"
    assert stems(table) == ["f0", "f1", "f2", "f3", "locked"]
    parts = microbatches(deployed, table)
    assert len(parts) == 2
    assert all(part["deployment_id"] and part["parent_task_run_id"] for part in parts)
    assert {part["state_type"] for part in parts} == {"COMPLETED"}
    artifacts = deployed.api("artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [run["id"]]}}})
    report = next(each["data"] for each in artifacts if each["type"] == "markdown")
    assert "| 5 | 0 | 4 | 1 | 0 | 0 |" in report, "the numbers come back from the other processes"
    assert "| upper | line |" in report
    assert not list((table / "_rayorch_flows" / "summaries").glob("*"))


def test_a_burst_of_events_ingests_every_file_once(deployed: Lab) -> None:
    """Events wake the sensor, which finds out by itself what is there: duplicates and floods do no harm."""
    source = deployed.corpus("inbox")
    table = deployed.directory / "inbox-table"
    sensor = deployments(deployed)["watch-source"]["id"]
    request = {"parameters": {"source": str(source), "table": str(table), "flow": TOY, "settle_s": 2}}
    _patch(deployed, f"deployments/{sensor}", request)
    for number in range(10):
        (source / f"f{number}.txt").write_text(f"line {number}")
    uris = [str(source / f"f{number % 10}.txt") for number in range(200)]
    sent = deployed.run("notify", *uris, PREFECT_API_URL=environment(deployed)["PREFECT_API_URL"])
    assert sent.status == 0, sent.output
    done = processes.wait_until(lambda: (table / "_delta_log").exists() and len(stems(table)) == 10, PATIENCE_S, 1)
    assert done, (deployed.directory / "worker.log").read_text()[-3000:]

    def sensors(*states: str) -> list[Any]:
        runs = deployed.api(
            "flow_runs/filter", {"flow_runs": {"state": {"type": {"any_": list(states)}}}, "limit": 200}
        )
        return [run for run in runs if run["deployment_id"] == sensor]

    waiting = ("SCHEDULED", "PENDING", "RUNNING")
    assert processes.wait_until(lambda: not sensors(*waiting), PATIENCE_S, 1), "sensor runs pile up"
    assert len(stems(table)) == 10
    reads = [line for line in deployed.notes("read") if "/inbox/" in line]
    assert len(reads) == 10, "a file was ingested twice"


def test_a_killed_microbatch_is_found_and_runs_again(deployed: Lab) -> None:
    """SIGKILL the flow process: the reconciler crashes its run and its task run, and schedules it again."""
    lines = "\n".join(f"line {n}" for n in range(10))
    source = deployed.corpus("killed", **{f"f{n}": lines for n in range(8)})
    table = deployed.directory / "killed-table"
    flow = f"{ROOT}/tests/orchestration/slow_toy_flow.py:FLOW"
    run = start(deployed, "ingest", source=str(source), table=str(table), flow=flow, microbatch_size=8)
    staging = table / "_rayorch_flows" / "staging"
    assert processes.wait_until(lambda: bool(list(staging.rglob("*.arrow"))), PATIENCE_S, 0.2)
    victim = _process_of(run)
    os.kill(victim, signal.SIGKILL)
    time.sleep(12)
    assert run_of(deployed, run)["state_type"] in ("RUNNING", "CRASHED")
    reconciled = start(deployed, "reconcile", silent_s=10, resubmissions=2)
    assert finished(deployed, reconciled)["state_type"] == "COMPLETED"
    again = finished(deployed, run)
    assert (again["state_type"], again["run_count"]) == ("COMPLETED", 2)
    assert stems(table) == [f"f{n}" for n in range(8)]
    for part in microbatches(deployed, table):
        assert part["state_type"] in ("CRASHED", "COMPLETED")
        tasks = deployed.api("task_runs/filter", {"task_runs": {"flow_run_id": {"any_": [part["id"]]}}})
        assert {task["state_type"] for task in tasks} <= {"CRASHED", "COMPLETED"}, "a task run runs for ever"


def _process_of(run: dict[str, Any]) -> int:
    """The flow run's own process, by the id in its environment."""
    found: list[int] = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            text = entry.read_bytes()
        except OSError:
            continue
        line = entry.with_name("cmdline").read_bytes()
        if f"PREFECT__FLOW_RUN_ID={run['id']}".encode() in text and b"prefect" in line and b"ray" not in line[:20]:
            found.append(int(entry.parent.name))
    assert found
    return max(found)


def _patch(lab: Lab, path: str, body: dict[str, Any]) -> None:
    import json
    import urllib.request

    state = server.read_state(lab.home)
    assert state is not None
    request = urllib.request.Request(
        f"{state.api_url}/{path}",
        data=json.dumps(body).encode(),
        headers={"content-type": "application/json"},
        method="PATCH",
    )
    with urllib.request.urlopen(request, timeout=30):
        pass
