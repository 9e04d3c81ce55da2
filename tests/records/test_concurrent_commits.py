"""Exactly once, with several processes that commit overlapping microbatches at once and are killed in the middle."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from rayorch_flows.records.table import RecordTable
from tests.records.helpers import RECORD

SCRIPT = Path(__file__).with_name("committer.py")
SOURCES, MICROBATCHES = 120, 12


def start(table: Path, seed: int) -> subprocess.Popen[bytes]:
    arguments = [str(table), str(seed), str(SOURCES), str(MICROBATCHES)]
    return subprocess.Popen([sys.executable, str(SCRIPT), *arguments], stdout=subprocess.PIPE)


def wait_for_commits(process: subprocess.Popen[bytes], count: int) -> None:
    assert process.stdout is not None
    for _ in range(count):
        if not process.stdout.readline():
            return


@pytest.mark.slow
def test_no_row_is_doubled_or_lost_when_writers_race_and_die(tmp_path: Path) -> None:
    chance = random.Random(7)
    place = tmp_path / "t"
    survivors = [start(place, seed) for seed in range(3)]
    killed = 0
    try:
        for seed in range(100, 108):
            victim = start(place, seed)
            wait_for_commits(victim, chance.randrange(1, 4))
            time.sleep(chance.uniform(0, 0.06))
            victim.send_signal(signal.SIGKILL)
            killed += victim.wait() == -signal.SIGKILL
            assert victim.stdout is not None
            victim.stdout.close()
        for process in survivors:
            process.communicate(timeout=120)
            assert process.returncode == 0
    finally:
        for process in survivors:
            if process.poll() is None:
                process.kill()
                process.wait()
    assert killed >= 4, "the victims finished before they could be killed"
    table = RecordTable(place, RECORD)
    rows = table.rows().to_pylist()
    keys = Counter((row["uri"], row["content_hash"], row["semantic_fingerprint"]) for row in rows)
    assert {key: count for key, count in keys.items() if count > 1} == {}
    assert sorted(row["uri"] for row in rows) == [f"/data/{number:04}" for number in range(SOURCES)]
    assert {row["outcome"] for row in rows} == {"present"}
    assert all(row["text"].startswith(("text ", "/data/")) for row in rows)
    assert writers_that_committed(place) >= 4


def writers_that_committed(place: Path) -> int:
    """How many commits wrote rows, out of the Delta log: the race took place."""
    entries = [
        json.loads(line) for log in (place / "_delta_log").glob("*.json") for line in log.read_text().splitlines()
    ]
    return sum(1 for entry in entries if entry.get("commitInfo", {}).get("operation") == "WRITE")
