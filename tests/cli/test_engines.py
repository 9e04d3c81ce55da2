"""Engine hosts: warm across flow runs, listed, drained, stopped, killed."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from rayorch_flows.orchestration import processes
from rayorch_flows.records.table import RecordTable
from tests.cli.lab import Lab

pytestmark = [pytest.mark.prefect, pytest.mark.ray, pytest.mark.slow]


def hosts(lab: Lab) -> list[dict[str, Any]]:
    finished = lab.run("engines", "--json")
    assert finished.status == 0, finished.output
    return [json.loads(line) for line in finished.output.splitlines() if line.startswith("{")]


def test_models_load_once_for_any_number_of_ingests(lab: Lab) -> None:
    for number in range(2):
        source = lab.corpus(f"warm{number}", **{f"f{n}": f"line {n}" for n in range(6)})
        finished = lab.ingest(source, lab.directory / f"warm{number}-table", "--microbatch-size", "2")
        assert finished.status == 0, finished.output
    assert len(lab.notes("construct")) == 2, "one actor each for Read and Upper"
    (host,) = hosts(lab)
    assert host["pipeline"] == "Toy"
    assert sum(host["actors"].values()) == 3
    text = lab.run("engines").output
    assert host["host"] in text
    assert "microbatches  none" in text


def test_another_form_of_the_pipeline_has_its_own_host_and_the_idle_one_drains(lab: Lab) -> None:
    (old,) = hosts(lab)
    source = lab.corpus("newer", a="a")
    finished = lab.ingest(source, lab.directory / "newer-table", RAYORCH_TOY_DELAY="0.001")
    assert f"Draining {old['host']}" in finished.output
    assert processes.wait_until(lambda: [each["host"] for each in hosts(lab)] not in ([], [old["host"]]), 30, 1)
    assert processes.wait_until(lambda: old["host"] not in [each["host"] for each in hosts(lab)], 60, 1)


def test_a_host_can_be_stopped(lab: Lab) -> None:
    (host,) = hosts(lab)
    stopped = lab.run("engines", "--stop", host["host"])
    assert stopped.status == 0, stopped.output
    assert processes.wait_until(lambda: hosts(lab) == [], 30, 1)
    assert "No engine host is running" in lab.run("engines").output
    unknown = lab.run("engines", "--drain", host["host"])
    assert unknown.status == 2
    assert "no engine host" in unknown.output


def test_a_killed_host_costs_no_source_and_no_finished_parent(lab: Lab) -> None:
    lines = "\n".join(f"line {n}" for n in range(8))
    source = lab.corpus("hostless", **{f"f{n:02}": lines for n in range(12)})
    table = lab.directory / "hostless-table"
    command = lab.start_ingest(source, table, "--microbatch-size", "12", RAYORCH_TOY_DELAY="0.1")
    staging = table / "_rayorch_flows" / "staging"
    assert processes.wait_until(lambda: len(list(staging.rglob("*.arrow"))) > 2, 120, 0.1), command.output()
    done_before = len(list(staging.rglob("*.arrow")))
    (host,) = [each for each in hosts(lab) if each["microbatches"]]
    os.kill(host["pid"], signal.SIGKILL)
    finished = command.finish()
    assert finished.status == 0, finished.output
    assert finished.summary["present"] == 12
    found = RecordTable.open(table).rows(["uri", "outcome", "text"]).to_pylist()
    assert sorted(Path(row["uri"]).stem for row in found) == [f"f{n:02}" for n in range(12)]
    assert all(row["text"] == lines.upper() for row in found)
    reads = [line for line in lab.notes("read") if "/hostless/" in line]
    assert len(reads) <= 24 - done_before, "finished parents were read again"
