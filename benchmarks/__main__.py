"""Measure one benchmark, or a ``selection`` of all; ``report`` turns saved rows into benchmarks/README.md."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks import harness, report, selection

BENCHMARKS = (
    *("containment", "overhead", "scaling", "fill", "ablation", "timeline", "memory", "real", "simulate", "gpu"),
    *("ingest", "deployed"),
)


def main(arguments: list[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    if given.name == "report":
        report.write()
        return 0
    rows: list[harness.Row] = []
    for job in _jobs(given):
        row = harness.run(job)
        rows.append(row)
        print(json.dumps(row) if given.json else harness.line(row), flush=True)
        if given.save:
            with Path(given.save).open("a") as file:
                file.write(json.dumps(row) + "\n")
    if not given.json:
        for name in dict.fromkeys(row["benchmark"] for row in rows):
            for line in harness.conclusions(name, [row for row in rows if row["benchmark"] == name]):
                print(f"{name}: {line}")
    return 0 if all(row["exact"] for row in rows) else 1


def _jobs(given: argparse.Namespace) -> list[harness.Job]:
    if given.name == "selection":
        wanted = given.systems.split(",") if given.systems else harness.SYSTEMS
        return [job for job in selection.jobs() if job.system in wanted]
    module: Any = harness.benchmark_module(given.name)
    systems: list[str] = given.systems.split(",") if given.systems else list(module.SYSTEMS)
    arms: list[str] = given.arms.split(",") if given.arms else list(module.ARMS)
    unknown = [name for name in systems if name not in module.SYSTEMS] + [a for a in arms if a not in module.ARMS]
    if unknown:
        _parser().error(f"{given.name} has no {', '.join(unknown)}: systems {module.SYSTEMS}, arms {module.ARMS}")
    options = {name: json.loads(value) for name, _, value in (text.partition("=") for text in given.option)}
    scale: float = given.scale if given.scale is not None else module.SCALE
    return [harness.Job(given.name, system, arm, scale, options) for system in systems for arm in arms]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", choices=(*BENCHMARKS, "selection", "report"))
    parser.add_argument("--systems", help="comma-separated (default: all that take part)")
    parser.add_argument("--arms", help="comma-separated (default: all)")
    parser.add_argument("--scale", type=float, help="divides the size of the input")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=JSON", help="passed to the system")
    parser.add_argument("--save", metavar="FILE", help="append the rows to a file of JSON lines")
    parser.add_argument("--json", action="store_true", help="one JSON line a row and nothing else")
    return parser


if __name__ == "__main__":
    sys.exit(main())
