from __future__ import annotations

import json
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from rayorch_flows import InfrastructureError
from rayorch_flows.orchestration.cluster import connection
from rayorch_flows.orchestration.cluster.check import expect_cluster
from rayorch_flows.orchestration.server.processes import ProcessId, wait_until
from rayorch_flows.orchestration.settings.home import Home


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home").create()


@pytest.mark.parametrize("address", ["nonsense", "ray://host", ":10001"])
def test_an_address_that_is_none(address: str) -> None:
    with pytest.raises(InfrastructureError, match=r"no host:port[\s\S]*ray://host:10001"):
        expect_cluster(address)


@pytest.mark.parametrize("address", ["127.0.0.1:9", "ray://127.0.0.1:9", "no-such-host.invalid:6379"])
def test_an_address_where_nobody_answers_is_told_soon(address: str) -> None:
    began = time.monotonic()
    with pytest.raises(InfrastructureError, match="no Ray cluster answers"):
        expect_cluster(address)
    assert time.monotonic() - began < 25


def test_the_token_is_made_once_and_private(home: Home) -> None:
    path = connection._token_file(home)
    token = path.read_text()
    assert len(token) >= 64
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert connection._token_file(home).read_text() == token


def test_what_a_killed_command_left_is_removed(home: Home) -> None:
    directory = tempfile.mkdtemp(prefix="rayorch-")
    left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", directory])
    try:
        command_line = Path(f"/proc/{left.pid}/cmdline")  # empty for a moment after the start
        assert wait_until(lambda: directory.encode() in command_line.read_bytes(), 10)
        record = home.ray_sessions / "1.json"
        record.write_text(json.dumps({"pid": 1, "started": "long ago", "directory": directory}))
        connection.clean_sessions(home)
        assert left.wait(10) is not None
        assert not Path(directory).exists()
        assert not record.exists()
    finally:
        left.kill()
        left.wait()


def test_what_a_living_command_uses_is_left_alone(home: Home, tmp_path: Path) -> None:
    directory = tmp_path / "used"
    directory.mkdir()
    me = ProcessId.current()
    record = home.ray_sessions / f"{me.pid}.json"
    record.write_text(json.dumps({"pid": me.pid, "started": me.started, "directory": str(directory)}))
    connection.clean_sessions(home)
    assert directory.exists()
    assert record.exists()
