"""Processes that outlive the object that knows them: identified by pid and start time, stopped by pid."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A pid that cannot be mistaken for a later process of the same number."""

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> ProcessId:
        return cls(pid, start_time(pid) or "")

    @classmethod
    def current(cls) -> ProcessId:
        return cls.of(os.getpid())

    def alive(self) -> bool:
        return self.started != "" and start_time(self.pid) == self.started


def start_time(pid: int) -> str | None:
    """When the process started, in the system's own units; None when there is no such process, or only a zombie."""
    stat = Path(f"/proc/{pid}/stat")
    if Path("/proc/self/stat").exists():
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return None if fields[0] in "ZX" else fields[19]
    found = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout.strip()
    return None if not found or found.startswith("Z") else found.split(None, 1)[1]


def wait_until(condition: Callable[[], bool], timeout_s: float, every_s: float = 0.05) -> bool:
    """Whether the condition became true in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(every_s)
    return True


def stop(process: ProcessId, grace_s: float = 8.0) -> None:
    """End the process: SIGTERM, then SIGKILL. Nothing happens when it is gone already."""
    for number, patience in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 5.0)):
        if not process.alive():
            break
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)
        wait_until(lambda: not process.alive(), patience)
    with contextlib.suppress(ChildProcessError, OSError):
        os.waitpid(process.pid, os.WNOHANG)
