"""Who ran what when, written down by the Functions themselves, so that it means the same for every system."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

FOLDER = "BENCHMARKS_LEDGER"


@dataclass(frozen=True)
class Entry:
    """One execution of a Function on one batch."""

    stage: str
    worker: int
    start: float
    end: float
    rows: int
    doomed: int


class Ledger:
    """The pages of one worker process; kept in a file of its own, one line a batch."""

    def __init__(self, stage: str) -> None:
        self.stage = stage
        self._file: TextIO | None = None

    def write(self, start: float, rows: int, doomed: int = 0) -> None:
        if self._file is None:
            # A thread of one process may be a worker of its own, so the name carries the object's identity too.
            path = Path(os.environ[FOLDER]) / f"{self.stage}-{os.getpid()}-{id(self)}"
            self._file = path.open("a", buffering=1)
        self._file.write(f"{self.stage} {os.getpid()} {start!r} {time.time()!r} {rows} {doomed}\n")


UP_S = 0.02
"""How long a worker keeps its first work, so that the next one's goes to another."""


def report_up() -> None:
    """Say that this worker is there, for ``up``."""
    (Path(os.environ[FOLDER]) / f".up-{os.getpid()}").touch()
    time.sleep(UP_S)


def up() -> int:
    """How many workers have done their first work."""
    return sum(path.name.startswith(".up-") for path in Path(os.environ[FOLDER]).iterdir())


def read(folder: Path) -> list[Entry]:
    entries: list[Entry] = []
    for path in folder.iterdir():
        if path.name.startswith("."):
            continue
        for line in path.read_text().splitlines():
            stage, worker, start, end, rows, doomed = line.split()
            entries.append(Entry(stage, int(worker), float(start), float(end), int(rows), int(doomed)))
    return sorted(entries, key=lambda entry: entry.start)


def rows(entries: Iterable[Entry], stage: str) -> int:
    return sum(entry.rows for entry in entries if entry.stage == stage)


def busy(entries: Iterable[Entry], stage: str) -> float:
    return sum(entry.end - entry.start for entry in entries if entry.stage == stage)


def window(entries: Iterable[Entry], stage: str) -> tuple[float, float]:
    """First start and last end of a stage."""
    of_stage = [entry for entry in entries if entry.stage == stage]
    return min(entry.start for entry in of_stage), max(entry.end for entry in of_stage)
