"""The benchmarks measure what they say: inputs, checks and rows; never times."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import harness, optimum, report, selection, workloads
from benchmarks.__main__ import BENCHMARKS
from benchmarks.virtual import Simulation, Site

ROOT = Path(__file__).parents[2]
COLUMNS = [
    "benchmark",
    "system",
    "arm",
    "scale",
    "wall_s",
    "ideal_s",
    "items",
    "items_per_s",
    "suppressed",
    "calls",
    "exact",
]


def test_the_failure_trace_is_the_papers() -> None:
    trace = workloads.failure_trace(1)
    large = sorted(trace.pages[index] for index in trace.poisoned)
    small = [count for index, count in enumerate(trace.pages) if index not in trace.poisoned]
    assert (len(trace.pages), trace.total, len(large), sum(large)) == (1_885, 45_507, 99, 23_613)
    assert (large[0], large[-1]) == (192, 427)
    assert (min(small), max(small)) == (1, 23)
    assert trace.doomed == 23_514


def test_a_tenth_of_the_trace_has_its_shape() -> None:
    trace = workloads.failure_trace(10)
    assert (len(trace.pages), trace.total) == (187, 4_550)
    assert trace.doomed / trace.total == pytest.approx(0.519, abs=0.01)


@pytest.mark.parametrize("wrong", ["lost", "doubled", "swapped", "revived"])
def test_a_wrong_result_is_not_exact(wrong: str) -> None:
    documents = workloads.Documents((3, 2), frozenset({1}))
    outputs: list[Any] = [[0, 1, 2], None]
    assert workloads.same(outputs, workloads.expected(documents))
    outputs[0] = {"lost": [0, 2], "doubled": [0, 1, 1, 2], "swapped": [1, 0, 2], "revived": [0, 1, 2]}[wrong]
    outputs[1] = [1_000, 1_001] if wrong == "revived" else None
    assert not workloads.same(outputs, workloads.expected(documents))


def test_the_optimum_is_no_better_than_physics_and_no_worse_than_one_by_one() -> None:
    counts = [100, 300, 50, 220]
    best = optimum.best_wall_s(counts, active=2, actors=4, batch=64, cost=lambda pages: 0.4 + 0.005 * pages)
    assert sum(counts) * (0.4 / 64 + 0.005) / 4 <= best <= sum(counts) * 0.405


def test_the_optimum_of_one_actor_is_the_sum_of_full_batches() -> None:
    assert optimum.best_wall_s([128], active=1, actors=1, batch=64, cost=lambda _: 1.0) == pytest.approx(2.0)


def test_the_virtual_clock_runs_every_page_once() -> None:
    documents = workloads.log_normal(60)
    simulation = Simulation(Site(4, 16, lambda pages: 0.01 * pages, 10, 3, openers=2, open_batch=4), documents)
    wall_s = simulation.run()
    assert simulation.terminal == 60
    assert simulation.machine.idle()
    assert simulation.busy[simulation.page_module] == pytest.approx(0.01 * documents.total)
    assert wall_s >= 0.01 * documents.total / 4


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_says_what_it_takes(name: str) -> None:
    module = harness.benchmark_module(name)
    assert set(module.SYSTEMS) <= set(harness.SYSTEMS)
    assert module.ARMS
    assert module.__doc__
    assert f"## {name}" in report.README.read_text()


def test_the_selection_asks_for_what_there_is() -> None:
    for job in selection.jobs():
        module = harness.benchmark_module(job.benchmark)
        assert job.system in module.SYSTEMS
        assert job.arm in module.ARMS


def test_a_row_without_a_result_is_not_exact(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(harness, "OUT", tmp_path)
    row = harness.run(harness.Job("containment", "floor", "clean", 10.0), python="/bin/false")
    assert row["exact"] is False
    assert "exit code 1" in row["error"]


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_gives_one_row_a_system_and_arm(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks", "containment", "--systems", "rayorch_flows,floor"]
    command += ["--arms", "poisoned", "--scale", "99", "--json", "--save", str(tmp_path / "rows")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=800, check=False)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["system"] for row in rows] == ["rayorch_flows", "floor"], done.stderr
    assert all(list(row)[: len(COLUMNS)] == COLUMNS for row in rows)
    assert all(row["exact"] for row in rows)
    assert 0 < rows[0]["suppressed"] <= workloads.failure_trace(99).doomed  # how many depends on the machine
    assert rows[1]["suppressed"] == 0
    assert len((tmp_path / "rows").read_text().splitlines()) == 2
