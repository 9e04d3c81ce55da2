"""Mutation check: ``python -m tests.mutations [--programs 600] [--only TEXT]``.

Breaks the engine in every way of the catalogue, one at a time, in a copy of the package, and runs the properties (and
the state-machine tests for what they do not see) against it. Every mutant must be caught; a snippet that is no longer
in the source is an error, so that the catalogue follows the engine.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mutations.catalogue import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 600


def stale(mutants: tuple[Mutant, ...]) -> list[str]:
    """Mutants whose snippet does not occur exactly once."""
    bad: list[str] = []
    for mutant in mutants:
        found = (ROOT / "rayorch_flows" / "lineage" / mutant.file).read_text().count(mutant.old)
        if found != 1:
            bad.append(f"{mutant.name}: {found} times in {mutant.file}")
    return bad


def plant(mutant: Mutant | None, where: Path) -> None:
    """A copy of the package and its tests, with the mutant in it."""
    for part in ("rayorch_flows", "tests", "docs"):
        shutil.copytree(ROOT / part, where / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", where)
    if mutant is not None:
        file = where / "rayorch_flows" / "lineage" / mutant.file
        file.write_text(file.read_text().replace(mutant.old, mutant.new))


def attack(mutant: Mutant | None, programs: int) -> tuple[str, float]:
    """How the mutant was caught ("" if it was not), and in how many seconds."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        plant(mutant, Path(folder))
        environment = os.environ | {"PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"}
        properties = [sys.executable, "-m", "tests.properties", "--first", "--programs", str(programs)]
        lineage = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "tests/lineage"]
        for command in (properties, lineage):
            try:
                done = subprocess.run(
                    command, cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S
                )
            except subprocess.TimeoutExpired:
                return "it never ended", time.monotonic() - began
            if done.returncode:
                lines = (done.stdout + done.stderr).strip().splitlines() or ["no output"]
                told = next((line for line in lines if line.startswith(("failed at", "FAILED"))), lines[-1])
                return told, time.monotonic() - began
    return "", time.monotonic() - began


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument("--programs", type=int, default=600)
    parser.add_argument("--only", default="", help="mutants whose name contains this")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    mutants = tuple(mutant for mutant in MUTANTS if options.only in mutant.name)
    if bad := stale(mutants):
        print("the catalogue does not fit the source any more:", *bad, sep="\n  ")
        return 2
    with ThreadPoolExecutor(options.processes) as pool:
        if caught := pool.submit(attack, None, options.programs).result()[0]:
            print("the engine fails without any mutant:", caught)
            return 2
        survivors: list[str] = []
        for mutant, (caught, took) in zip(
            mutants, pool.map(attack, mutants, [options.programs] * len(mutants)), strict=True
        ):
            print(f"{'caught  ' if caught else 'SURVIVED'} {took:6.1f} s  {mutant.name}: {caught}", flush=True)
            if not caught:
                survivors.append(mutant.name)
    print(f"{len(mutants) - len(survivors)} of {len(mutants)} mutants caught")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
