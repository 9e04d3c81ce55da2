"""A work pool with its worker, and what the lab's server says of the runs in it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rayorch_flows.orchestration.server import processes
from rayorch_flows.records.table import RecordTable
from tests.cli.lab import PATIENCE_S, ROOT, Lab, Running

OPEN = ("SCHEDULED", "PENDING", "RUNNING", "CANCELLING")
OVER = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
MICROBATCH_DEPLOYMENT = "ingest-microbatch/ingest-microbatch"


def environment(lab: Lab) -> dict[str, str]:
    return (
        {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "RAY_"))}
        | lab.environment
        | {
            "PREFECT_API_URL": lab.api_url,
            "PREFECT_HOME": str(lab.directory / "worker"),
            "PREFECT_WORKER_QUERY_SECONDS": "1",
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


class Worker:
    """A worker of the pool, in a session of its own. ``kill`` and ``start`` are what a service manager does."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.start()

    def start(self) -> None:
        with self.log.open("ab") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "prefect", "worker", "start", "--pool", "rayorch"],
                env=environment(self.lab),
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def log(self) -> Path:
        return self.lab.directory / "worker.log"

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]

    def kill(self) -> None:
        """SIGKILL the worker; the flow runs it has started live on."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def a_worker(lab: Lab) -> Generator[Worker]:
    """The deployments of ``prefect.yaml`` and a worker for them; at the end nothing of it runs any more."""
    prefect(lab, "work-pool", "create", "rayorch", "--type", "process")
    prefect(lab, "deploy", "--all")
    worker = Worker(lab)
    try:
        yield worker
    finally:
        worker.kill()
        kill_flow_processes(lab)


def flow_processes(lab: Lab, run: dict[str, Any] | None = None) -> list[int]:
    """The processes of the lab's flow runs, or of one of them, by what their environment says."""
    wanted = [f"PREFECT__FLOW_RUN_ID={'' if run is None else run['id']}", f"RAYORCH_FLOWS_HOME={lab.home.root}"]
    found: list[int] = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            text = entry.read_bytes()
            line = entry.with_name("cmdline").read_bytes()
        except OSError:
            continue
        if all(each.encode() in text for each in wanted) and b"prefect" in line and b"ray" not in line[:20]:
            found.append(int(entry.parent.name))
    return found


def kill_flow_processes(lab: Lab) -> None:
    for process in flow_processes(lab):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


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


def until(condition: Callable[[], Any], who: Worker | Running) -> None:
    assert processes.wait_until(lambda: bool(condition()), PATIENCE_S / 2, 0.1), who.tail()


def cancel(lab: Lab, run: dict[str, Any], who: Worker | Running) -> None:
    """As the UI does it; returns when the run is Cancelled."""
    lab.api(f"flow_runs/{run['id']}/set_state", {"state": {"type": "CANCELLING", "name": "Cancelling"}})
    until(lambda: run_of(lab, run)["state_type"] == "CANCELLED", who)


def finished(lab: Lab, run: dict[str, Any]) -> dict[str, Any]:
    done = processes.wait_until(lambda: run_of(lab, run)["state_type"] in OVER, PATIENCE_S, 0.5)
    assert done, (run_of(lab, run), (lab.directory / "worker.log").read_text()[-3000:])
    return run_of(lab, run)


def microbatches(lab: Lab, table: Path) -> list[dict[str, Any]]:
    """The flow runs of the table's microbatches, oldest first."""
    runs = lab.api("flow_runs/filter", {"limit": 200, "sort": "START_TIME_ASC"})
    return [run for run in runs if run["parameters"].get("table") == str(table) and "microbatch" in run["parameters"]]


def stems(table: Path) -> list[str]:
    return sorted(Path(row["uri"]).stem for row in RecordTable.open(table).rows(["uri"]).to_pylist())
