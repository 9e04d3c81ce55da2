"""Cancelling from the UI or the API, which both only change a state in the server."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from rayorch_flows.orchestration import processes
from rayorch_flows.records.table import RecordTable
from tests.cli.lab import CANCELLED_S, Lab

pytestmark = [pytest.mark.prefect, pytest.mark.ray, pytest.mark.slow]


def running(lab: Lab, table: Path) -> list[dict[str, Any]]:
    found = lab.api("flow_runs/filter", {"flow_runs": {"state": {"type": {"any_": ["RUNNING"]}}}})
    return [run for run in found if run["parameters"].get("table") == str(table)]


def cancel(lab: Lab, run: dict[str, Any]) -> float:
    """As the UI does it; the seconds until the run is Cancelled and the engine has let go of it."""
    began = time.monotonic()
    lab.api(f"flow_runs/{run['id']}/set_state", {"state": {"type": "CANCELLING", "name": "Cancelling"}})
    assert processes.wait_until(lambda: state_of(lab, run) == "CANCELLED", CANCELLED_S, 0.2), state_of(lab, run)
    return time.monotonic() - began


def state_of(lab: Lab, run: dict[str, Any]) -> str:
    (found,) = lab.api("flow_runs/filter", {"flow_runs": {"id": {"any_": [run["id"]]}}})
    return found["state_type"]


def test_a_cancelled_microbatch_stops_alone_and_its_staged_parents_are_kept(lab: Lab) -> None:
    lines = "\n".join(f"line {n}" for n in range(8))
    source = lab.corpus("cancelled", **{f"f{n:02}": lines for n in range(16)})
    table = lab.directory / "cancelled-table"
    command = lab.start_ingest(source, table, "--microbatch-size", "8", RAYORCH_TOY_DELAY="0.1")
    staging = table / "_rayorch_flows" / "staging"
    assert processes.wait_until(lambda: len(list(staging.rglob("*.arrow"))) > 2, 120, 0.1), command.output()
    microbatches = [run for run in running(lab, table) if "microbatch" in run["parameters"]]
    assert len(microbatches) == 2
    victim = next(run for run in microbatches if list(staging.glob(f"*/{run['parameters']['microbatch']}/*")))
    assert cancel(lab, victim) < CANCELLED_S
    finished = command.finish()
    assert finished.status == 3, finished.output
    assert (finished.summary["present"], finished.summary["unaccounted"]) == (8, 8)
    assert "cancelled: what is finished is staged" in finished.output
    assert state_of(lab, victim) == "CANCELLED", "the end of the run does not hide that it was cancelled"
    count = len(lab.notes("read"))
    time.sleep(2)
    assert len(lab.notes("read")) == count, "the engine goes on with cancelled work"
    kept = list(staging.glob(f"*/{victim['parameters']['microbatch']}/*.arrow"))
    assert kept
    again = lab.ingest(source, table, RAYORCH_TOY_DELAY="0.1")
    assert again.status == 0, again.output
    assert (again.summary["present"], again.summary["unchanged"]) == (8, 8)
    assert RecordTable.open(table).rows(["uri"]).num_rows == 16


def test_a_cancelled_ingest_cancels_its_microbatches(lab: Lab) -> None:
    lines = "\n".join(f"line {n}" for n in range(8))
    source = lab.corpus("stopped", **{f"f{n:02}": lines for n in range(24)})
    table = lab.directory / "stopped-table"
    command = lab.start_ingest(source, table, "--microbatch-size", "4", RAYORCH_TOY_DELAY="0.1")
    staging = table / "_rayorch_flows" / "staging"
    assert processes.wait_until(lambda: bool(list(staging.rglob("*.arrow"))), 120, 0.1), command.output()
    everything = running(lab, table)
    (parent,) = [run for run in everything if "microbatch" not in run["parameters"]]
    assert cancel(lab, parent) < CANCELLED_S
    finished = command.finish()
    assert finished.status == 3, finished.output
    assert not running(lab, table), "a microbatch outlived its ingest"
    assert finished.summary["unaccounted"] > 0
    assert "Traceback" not in finished.output
