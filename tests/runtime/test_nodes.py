"""A node that leaves the cluster takes payloads along: the source items that need them run again, no others."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest


@pytest.mark.slow
@pytest.mark.ray
def test_a_lost_node_changes_no_result() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.runtime.lost_node"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "PYTHONPATH": os.getcwd(), "RAYORCH_FLOWS_VALIDATE": "1"},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["exact"]
    assert 1 <= len(result["restarted"]) <= 4
    assert sum(result["restarted"]) <= 30
