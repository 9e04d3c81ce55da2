"""Deployments on a real server and a real worker: scheduled, woken by events."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from rayorch_flows.orchestration.server import processes
from tests.cli.lab import PATIENCE_S, TOY, Lab
from tests.cli.pool import a_worker, deployments, finished, microbatches, prefect, start, stems

pytestmark = [pytest.mark.prefect, pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]

FOUR = {"ingest", "ingest-microbatch", "watch-source", "reconcile"}


@pytest.fixture(scope="module")
def deployed(lab: Lab) -> Generator[Lab]:
    """The four deployments, deployed twice, and a worker for them."""
    with a_worker(lab):
        prefect(lab, "deploy", "--all")
        yield lab


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
    assert automations[0]["trigger"]["within"] == 10, "a burst of events wakes the sensor once"
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


def test_a_microbatch_deployment_that_is_not_there_is_told_before_anything_is_written(deployed: Lab) -> None:
    source = deployed.corpus("nowhere", a="1")
    table = deployed.directory / "nowhere-table"
    log = deployed.directory / "worker.log"
    before = log.stat().st_size
    run = start(deployed, "ingest", source=str(source), table=str(table), flow=TOY, deployment="ingest-microbatch/nope")
    run = finished(deployed, run)
    assert run["state_type"] == "FAILED"
    assert run["state"]["message"].startswith("there is no deployment 'ingest-microbatch/nope'\n  next: ")
    assert not table.exists()
    assert "Traceback" not in log.read_text()[before:]


def test_a_burst_of_events_ingests_every_file_once(deployed: Lab) -> None:
    """Events wake the sensor, which finds out by itself what is there: duplicates and floods do no harm."""
    source = deployed.corpus("inbox")
    table = deployed.directory / "inbox-table"
    sensor = deployments(deployed)["watch-source"]["id"]
    request = {"parameters": {"source": str(source), "table": str(table), "flow": TOY, "settle_s": 2}}
    deployed.api(f"deployments/{sensor}", request, method="PATCH")
    for number in range(10):
        (source / f"f{number}.txt").write_text(f"line {number}")
    uris = [str(source / f"f{number % 10}.txt") for number in range(200)]
    sent = deployed.run("notify", *uris, PREFECT_API_URL=deployed.api_url)
    assert sent.status == 0, sent.output
    done = processes.wait_until(lambda: (table / "_delta_log").exists() and len(stems(table)) == 10, PATIENCE_S, 1)
    assert done, (deployed.directory / "worker.log").read_text()[-3000:]

    def sensors(*states: str) -> list[Any]:
        runs = deployed.api(
            "flow_runs/filter", {"flow_runs": {"state": {"type": {"any_": list(states)}}}, "limit": 200}
        )
        return [run for run in runs if run["deployment_id"] == sensor]

    assert len(sensors("COMPLETED", "CANCELLED", "SCHEDULED", "PENDING", "RUNNING")) < 10, "200 events, few runs"
    waiting = ("SCHEDULED", "PENDING", "RUNNING")
    assert processes.wait_until(lambda: not sensors(*waiting), PATIENCE_S, 1), "sensor runs pile up"
    assert len(stems(table)) == 10
    reads = [line for line in deployed.notes("read") if "/inbox/" in line]
    assert len(reads) == 10, "a file was ingested twice"
