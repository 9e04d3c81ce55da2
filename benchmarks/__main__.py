"""``python -m benchmarks NAME [--systems a,b] [--arms a,b] [--scale X] [--json]``"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from benchmarks import harness

BENCHMARKS = ("containment", "overhead", "scaling", "fill", "ablation", "timeline", "memory", "real", "simulate")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", choices=BENCHMARKS)
    parser.add_argument("--systems", help="comma-separated (default: all that take part)")
    parser.add_argument("--arms", help="comma-separated (default: all)")
    parser.add_argument("--scale", type=float, help="divides the size of the input")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=JSON", help="passed to the systems")
    parser.add_argument("--json", action="store_true", help="one JSON line a row and nothing else")
    given = parser.parse_args(arguments)
    module: Any = harness.benchmark_module(given.name)
    systems = given.systems.split(",") if given.systems else module.SYSTEMS
    arms = given.arms.split(",") if given.arms else module.ARMS
    unknown = [name for name in systems if name not in module.SYSTEMS] + [a for a in arms if a not in module.ARMS]
    if unknown:
        parser.error(f"{given.name} has no {', '.join(unknown)}: systems {module.SYSTEMS}, arms {module.ARMS}")
    options = {name: json.loads(value) for name, _, value in (text.partition("=") for text in given.option)}
    scale = given.scale if given.scale is not None else module.SCALE
    exact = True
    for system in systems:
        for arm in arms:
            row = harness.run(harness.Job(given.name, system, arm, scale, options))
            exact &= bool(row["exact"])
            print(json.dumps(row) if given.json else harness.line(row), flush=True)
    return 0 if exact else 1


if __name__ == "__main__":
    sys.exit(main())
