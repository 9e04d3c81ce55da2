"""Runs of deployments: how long from the start of the flow function until the engine works on its first batch.

Everything is started for it: a Prefect server, a Ray cluster, a work pool, a worker. ``microbatch``: each run is one
microbatch in a process of its own. ``ingest``: each run is a whole ingest that runs its microbatch inside. The first
run makes the engine host and its actors, the later ones find them; they count.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks import ledger, prefect_lab
from benchmarks.harness import Job, Row, row
from benchmarks.prefect_lab import FLOW, Lab
from rayorch_flows.records.table import RecordTable

SYSTEMS = ("rayorch_flows",)
ARMS = ("microbatch", "ingest")
SCALE = 1.0

RUNS = 9
BAR_S = 3.0
SOURCES = 4
POOL = "rayorch"


def measure(job: Job) -> Row:
    runs = max(3, int(RUNS / job.scale))
    with tempfile.TemporaryDirectory(prefix="bench-lab-", dir="/tmp") as folder, prefect_lab.a_lab(Path(folder)) as lab:
        lab.run("prefect", "--no-prompt", "work-pool", "create", POOL, "--type", "process")
        lab.run("prefect", "--no-prompt", "deploy", "--all")
        worker = ("prefect", "worker", "start", "--pool", POOL)
        quick = {"PREFECT_WORKER_QUERY_SECONDS": "2", "PREFECT_RUNNER_POLL_FREQUENCY": "2"}
        with prefect_lab.started(worker, lab.environment | quick, lab.folder / "worker.log"):
            table = lab.folder / "table"
            measured = _microbatches(lab, table, runs) if job.arm == "microbatch" else _ingests(lab, table, runs)
        rows = RecordTable.open(table).rows(["outcome"]).to_pylist()
    first, later = measured[0], measured[1:]
    waits = [sum(run.values()) for run in later]
    return row(
        job,
        wall_s=statistics.median(waits),
        ideal_s=BAR_S,
        items=runs,
        exact=len(rows) == runs * SOURCES and all(each["outcome"] == "present" for each in rows),
        first_run_s=sum(first.values()),
        worst_s=max(waits),
        **{name: statistics.median(run[name] for run in later) for name in first},
    )


def _microbatches(lab: Lab, table: Path, runs: int) -> list[dict[str, float]]:
    """One ingest, whose microbatches follow each other as runs of their deployment."""
    run = _start(
        lab,
        lab.sources("sources", [2] * SOURCES * runs),
        table,
        microbatch_size=SOURCES,
        concurrency=1,
        deployment="ingest-microbatch/ingest-microbatch",
    )
    _finish(lab, run)
    return [_parts(lab, each, each) for each in _runs(lab, "ingest-microbatch")]


def _ingests(lab: Lab, table: Path, runs: int) -> list[dict[str, float]]:
    """Ingests that follow each other."""
    found: list[dict[str, float]] = []
    for number in range(runs):
        run = _start(lab, lab.sources(f"sources-{number}", [2] * SOURCES), table)
        _finish(lab, run)
        (inside,) = [each for each in _runs(lab, "ingest-microbatch") if each["start_time"] > run["created"]]
        (outside,) = lab.ask("flow_runs/filter", {"flow_runs": {"id": {"any_": [run["id"]]}}})
        found.append(_parts(lab, outside, inside))
    return found


def _start(lab: Lab, source: Path, table: Path, **parameters: Any) -> dict[str, Any]:
    (deployment,) = [each for each in lab.ask("deployments/filter", {}) if each["name"] == "ingest"]
    parameters |= {"source": str(source), "table": str(table), "flow": FLOW}
    body = {"parameters": parameters, "state": {"type": "SCHEDULED"}}
    return lab.ask(f"deployments/{deployment['id']}/create_flow_run", body)


def _finish(lab: Lab, run: dict[str, Any]) -> None:
    ended = prefect_lab.waited(lab, run["id"])
    if ended["state_type"] != "COMPLETED":
        raise RuntimeError(f"{ended['state']['message']}\n{(lab.folder / 'worker.log').read_text()[-3000:]}")


def _runs(lab: Lab, name: str) -> list[dict[str, Any]]:
    """The flow runs of a flow, in their order."""
    return lab.ask("flow_runs/filter", {"flows": {"name": {"any_": [name]}}, "sort": "START_TIME_ASC", "limit": 200})


def _parts(lab: Lab, outside: dict[str, Any], inside: dict[str, Any]) -> dict[str, float]:
    """Seconds from the start of the flow run ``outside``: until the task of the microbatch ``inside`` runs in its new
    Ray worker, and from there until the first Function works."""
    (task,) = lab.ask("task_runs/filter", {"task_runs": {"flow_run_id": {"any_": [inside["id"]]}}})
    began, running = _seconds(outside["start_time"]), _seconds(task["start_time"])
    work = [entry.start for entry in ledger.read(Path(os.environ[ledger.FOLDER])) if entry.start > began]
    return {"to_task_s": running - began, "to_work_s": min(work) - running}


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def conclude(rows: list[Row]) -> list[str]:
    return [
        f"{each['arm']}: second and later runs work after {each['wall_s']:.1f} s, at worst {each['worst_s']:.1f} s; "
        f"they may take {BAR_S:.0f} s"
        for each in rows
    ]
