"""A command whose embedded server ends: it starts the server again, or ends itself with one clear message."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rayorch_flows import InfrastructureError
from rayorch_flows.cli.session import _terminable
from rayorch_flows.orchestration.server import keeper as server_keeper
from rayorch_flows.orchestration.server import prefect_server, processes
from rayorch_flows.orchestration.server.keeper import AGAIN, STARTS, kept
from rayorch_flows.orchestration.server.prefect_server import Server
from rayorch_flows.orchestration.settings.home import Home

SERVER = Server("http://127.0.0.1:4270/api", embedded=True)


@pytest.fixture(autouse=True)
def _in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_keeper, "LOOK_EVERY_S", 0.01)


def test_a_server_that_ends_again_and_again_ends_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(prefect_server, "runs", lambda home, server: False)
    monkeypatch.setattr(prefect_server, "start_again", lambda home, server: True)
    with (
        _terminable(),
        pytest.raises(InfrastructureError, match=f"cannot be started again: it was started again {STARTS} times"),
        kept(Home(tmp_path), SERVER, told.append),
    ):
        time.sleep(60)
    assert told == [AGAIN] * STARTS


def test_a_server_that_cannot_be_started_ends_the_command(tmp_path: Path) -> None:
    with (
        _terminable(),
        pytest.raises(InfrastructureError, match=r"cannot be started again: .*No such file"),
        kept(Home(tmp_path / "gone"), SERVER, print),
    ):
        time.sleep(60)


def test_a_server_that_another_command_has_started_again_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Home] = []

    def start_again(home: Home, server: Server) -> bool:
        asked.append(home)
        return False

    told: list[str] = []
    monkeypatch.setattr(prefect_server, "runs", lambda home, server: bool(asked))
    monkeypatch.setattr(prefect_server, "start_again", start_again)
    with kept(Home(tmp_path), SERVER, told.append):
        assert processes.wait_until(lambda: bool(asked), 10)
        time.sleep(0.1)
    assert (asked, told) == ([Home(tmp_path)], [])


@pytest.mark.parametrize("embedded", [True, False])
def test_the_blocks_own_error_stays(tmp_path: Path, embedded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefect_server, "runs", lambda home, server: True)
    with pytest.raises(ValueError, match="mine"), kept(Home(tmp_path), Server("http://a/api", embedded), print):
        raise ValueError("mine")
