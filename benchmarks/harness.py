"""Runs each (benchmark, system, arm) in a process of its own, with a Ray of its own, and collects one row from each."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks import ledger

SYSTEMS = ("rayorch_flows", "rayorch", "raydata", "daft", "floor")
OUT = Path(__file__).resolve().parent / "out"

Row = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """One measurement."""

    benchmark: str
    system: str
    arm: str
    scale: float
    options: dict[str, Any] = field(default_factory=dict[str, Any])

    def dump(self) -> str:
        return json.dumps(vars(self))

    @classmethod
    def load(cls, text: str) -> Job:
        return cls(**json.loads(text))


@dataclass
class Measured:
    """What a system hands back: when its clock started (``time.time``) and what it showed at the end, the outputs, and
    the calls that it made to workers (-1: it does not say)."""

    began: float
    wall_s: float
    outputs: list[Any]
    calls: int = -1
    extra: Row = field(default_factory=dict[str, Any])


def benchmark_module(name: str) -> ModuleType:
    return importlib.import_module(f"benchmarks.{name}")


def system_module(name: str) -> ModuleType:
    return importlib.import_module(f"benchmarks.systems.{name}")


def row(job: Job, **fields: Any) -> Row:
    """The columns that every benchmark fills, and then its own."""
    columns = ("wall_s", "ideal_s", "items", "items_per_s", "suppressed", "calls", "exact")
    base: Row = {"benchmark": job.benchmark, "system": job.system, "arm": job.arm, "scale": job.scale}
    base |= dict.fromkeys(columns)
    base |= fields
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in base.items()}


def without_start(measured: Measured, entries: list[ledger.Entry]) -> tuple[float, float]:
    """Time until the first batch ran, and the wall time without it.

    Ray Data and Daft start their actors with every query, the others have theirs up before the clock starts: so that
    nobody is charged for starting processes, every clock begins with the first batch that enters the model.
    """
    started_s = max(0.0, entries[0].start - measured.began)
    return started_s, measured.wall_s - started_s


def run(job: Job, *, timeout_s: float = 3_600, python: str = sys.executable) -> Row:
    """Measure in a child process; a child that dies gives a row that says so."""
    OUT.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir="/tmp") as folder:
        answer, records = Path(folder) / "row.json", Path(folder) / "ledger"
        records.mkdir()
        environment = dict(os.environ)
        environment |= {
            ledger.FOLDER: str(records),
            "BENCHMARKS_RAY": str(Path(folder) / "ray"),
            "PYTHONPATH": str(Path(__file__).resolve().parent.parent),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_DEDUP_LOGS": "0",
            "DO_NOT_TRACK": "1",
            "DAFT_ANALYTICS_ENABLED": "0",
            "DAFT_PROGRESS_BAR": "0",
        }
        log = OUT / f"{job.benchmark}-{job.system}-{job.arm}.log"
        with log.open("w") as output:
            command = [python, "-m", "benchmarks.child", job.dump(), str(answer)]
            try:
                code = subprocess.run(
                    command, stdout=output, stderr=output, env=environment, timeout=timeout_s, check=False
                ).returncode
            except subprocess.TimeoutExpired:
                code = -1
        try:
            if code == 0 and answer.exists():
                return json.loads(answer.read_text())
            return row(job, exact=False, error=f"exit code {code}, see benchmarks/out/{log.name}")
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def line(values: Row) -> str:
    """A row for a person: what it is, and the columns that it fills."""
    names = ("benchmark", "system", "arm")
    head = " ".join(f"{values[name]!s:<13}" for name in names)
    rest = (f"{name}={value}" for name, value in values.items() if name not in names and value is not None)
    return head + " ".join(rest)


def conclusions(name: str, rows: list[Row]) -> list[str]:
    """What a benchmark says about its rows taken together."""
    conclude: Callable[[list[Row]], list[str]] | None = getattr(benchmark_module(name), "conclude", None)
    whole = [values for values in rows if values["exact"]]
    return conclude(whole) if conclude and whole else []
