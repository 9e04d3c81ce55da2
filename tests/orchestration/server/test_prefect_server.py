"""The embedded server: started once, shared, stopped by its last user, and never mistaken for another one."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import pytest

from rayorch_flows import InfrastructureError
from rayorch_flows.orchestration.server import prefect_server, processes
from rayorch_flows.orchestration.server.processes import ProcessId
from rayorch_flows.orchestration.settings.home import Home


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Generator[Home]:
    """A home whose server takes any port: while it is away, nobody else takes that one."""
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setattr(prefect_server, "PREFERRED_PORT", 0)
    with tempfile.TemporaryDirectory(prefix="lab-") as directory:
        place = Home(Path(directory) / "home").create()
        yield place
        state = prefect_server.read_state(place)
        if state is not None:
            processes.stop(state.process)


@pytest.fixture
def stranger() -> Generator[ProcessId]:
    """Another living process."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield ProcessId.of(process.pid)
    process.kill()
    process.wait()


@pytest.mark.prefect
@pytest.mark.slow
def test_one_server_is_shared_and_the_last_user_stops_it(home: Home, stranger: ProcessId) -> None:
    first = prefect_server.claim(home)
    prefect_server.wait_answer(home, first)
    with urllib.request.urlopen(f"{first.api_url}/health", timeout=10) as answer:
        assert answer.status == 200
    assert prefect_server.claim(home) == first
    state = prefect_server.read_state(home)
    assert state is not None
    assert state.users == (ProcessId.current(),), "the same user is counted once"
    prefect_server.write_state(home, replace(state, users=(*state.users, stranger)))
    prefect_server.release(home, first)
    assert state.process.alive(), "somebody else uses it"
    prefect_server.claim(home)
    os.kill(stranger.pid, 9)
    assert processes.wait_until(lambda: not stranger.alive(), 10)
    prefect_server.release(home, first)
    assert not state.process.alive()
    assert prefect_server.read_state(home) is None


@pytest.fixture
def sleeper(home: Home, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A server that holds its port and does nothing."""
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nexec sleep 120\n")
    program.chmod(0o755)
    monkeypatch.setattr(prefect_server.sys, "executable", str(program))


def kill(process: ProcessId) -> None:
    os.kill(process.pid, 9)
    assert processes.wait_until(lambda: not process.alive(), 10)


def users_of_a_killed_server(
    home: Home, stranger: ProcessId
) -> tuple[prefect_server.Server, prefect_server.ServerState]:
    claimed = prefect_server.claim(home)
    state = prefect_server.read_state(home)
    assert state is not None
    prefect_server.write_state(home, replace(state, users=(*state.users, stranger)))
    assert prefect_server.runs(home, claimed)
    kill(state.process)
    assert not prefect_server.runs(home, claimed)
    return claimed, state


@pytest.mark.usefixtures("sleeper")
def test_a_killed_server_is_started_again_once_at_its_port_for_all_its_users(home: Home, stranger: ProcessId) -> None:
    claimed, before = users_of_a_killed_server(home, stranger)
    assert prefect_server.start_again(home, claimed)
    assert not prefect_server.start_again(home, claimed), "another user finds it running"
    after = prefect_server.read_state(home)
    assert after is not None
    assert after.process != before.process
    assert (after.port, after.users) == (before.port, (*before.users, stranger))
    assert prefect_server.runs(home, claimed)


@pytest.mark.usefixtures("sleeper")
def test_who_comes_after_a_server_was_killed_starts_it_for_its_users_too(home: Home, stranger: ProcessId) -> None:
    claimed, before = users_of_a_killed_server(home, stranger)
    assert prefect_server.claim(home) == claimed
    after = prefect_server.read_state(home)
    assert after is not None
    assert after.users == (*before.users, stranger)
    assert not prefect_server.start_again(home, claimed)


@pytest.mark.usefixtures("sleeper")
def test_a_server_whose_port_is_taken_meanwhile_is_not_started_elsewhere(home: Home, stranger: ProcessId) -> None:
    claimed, before = users_of_a_killed_server(home, stranger)
    with (
        prefect_server._listening(before.port),
        pytest.raises(InfrastructureError, match=f"port {before.port} .* not free"),
    ):
        prefect_server.start_again(home, claimed)
    assert not prefect_server.runs(home, claimed)


def test_a_given_server_is_used_and_never_stopped(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://prefect.example:4200/api/")
    given = prefect_server.claim(home)
    assert (given.api_url, given.embedded) == ("http://prefect.example:4200/api", False)
    assert given.ui_url == "http://prefect.example:4200"
    prefect_server.release(home, given)
    assert prefect_server.read_state(home) is None
    assert "PREFECT_HOME" not in prefect_server.client_environment(home, given)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"process": {}, "port": 1, "users": []}'])
def test_a_state_that_cannot_be_read_is_none(home: Home, text: str) -> None:
    home.server_state.write_text(text)
    assert prefect_server.read_state(home) is None


def test_a_later_process_of_the_same_number_is_not_our_server(home: Home) -> None:
    """After a crash and a reboot the pid may belong to anybody: it is neither used nor stopped."""
    reused = ProcessId(os.getpid(), "long ago")
    assert not reused.alive()
    processes.stop(reused)
    assert ProcessId.current().alive()


def test_a_server_that_dies_while_starting_is_told_with_its_last_words(
    home: Home, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho the disk is full >&2\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setattr(prefect_server.sys, "executable", str(program))
    with pytest.raises(InfrastructureError, match=r"ended while it started:\s+the disk is full"):
        prefect_server.wait_answer(home, prefect_server.claim(home))


def test_the_server_gets_nothing_of_the_callers_prefect(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_KEY", "secret")
    monkeypatch.setenv("PREFECT_API_DATABASE_CONNECTION_URL", "postgresql://elsewhere")
    environment = prefect_server.server_environment(home, 4321)
    assert "secret" not in environment.values()
    assert environment["PREFECT_UI_API_URL"] == "http://127.0.0.1:4321/api"
    assert str(home.prefect) in environment["PREFECT_API_DATABASE_CONNECTION_URL"]


def test_the_port_is_taken_before_the_server_starts(home: Home) -> None:
    """Nobody else can answer in the place of a server that is still starting."""
    with prefect_server._listening(0) as first:
        port = first.getsockname()[1]
        with prefect_server._listening(port, 0) as second:
            assert second.getsockname()[1] != port
