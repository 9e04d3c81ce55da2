"""Commands that end too early: what they leave behind, and what the next one makes of it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import pytest

from rayorch_flows.orchestration.server import prefect_server as server
from rayorch_flows.orchestration.server import processes
from rayorch_flows.orchestration.server.keeper import AGAIN
from tests.cli.counted import LINES, Corpus
from tests.cli.lab import SOON_S, GivenServer, Lab, Running
from tests.cli.pool import stems, until

pytestmark = [pytest.mark.prefect, pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]


def in_the_second(corpus: Corpus) -> Running:
    """An ingest whose first microbatch has committed; of the next, one source is finished, and all else waits."""
    corpus.allow((4 + 1) * LINES)
    running = corpus.command(4, "--concurrency", "1")
    until(lambda: "Microbatch " in running.output() and corpus.staged(), running)
    return running


def raylet_environment(command: int) -> list[str]:
    """The environment of the Ray that a command has started."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it may end meanwhile
            name, _, rest = (folder / "stat").read_text().partition("(")[2].rpartition(")")
            if name == "raylet" and int(rest.split()[1]) == command:
                return (folder / "environ").read_text().split("\0")
    raise AssertionError("the command has no raylet")


def test_a_killed_command_run_again_gives_the_same_table_and_redoes_no_finished_microbatch(bare_lab: Lab) -> None:
    """SIGKILL in the middle, with everything embedded: Ray and the server end by themselves, or are used again."""
    lab = bare_lab
    corpus = Corpus(lab, "killed", 12)
    running = in_the_second(corpus)
    assert "RAY_free_objects_period_milliseconds=100" in raylet_environment(running.process.pid), "for byte budgets"
    assert running.send(signal.SIGKILL).status == -signal.SIGKILL
    committed, kept = stems(corpus.table), corpus.staged()
    assert (len(committed), len(kept)) == (4, 1)
    corpus.hurry()
    again = corpus.command(4).finish()
    assert again.status == 0, again.output
    assert "left unfinished before" in again.output
    assert again.summary["unchanged"] == 4
    assert again.summary["unaccounted"] == 0
    corpus.expect_complete()
    corpus.expect_done_once(kept.union(committed))
    assert processes.wait_until(lambda: not lab.leftovers(), SOON_S, 0.5), lab.leftovers()
    assert server.read_state(lab.home) is None, "the last user stops the server"


@pytest.mark.parametrize(
    ("number", "status", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_an_interrupted_command_leaves_nothing_running(
    bare_lab: Lab, number: signal.Signals, status: int, word: str
) -> None:
    lab = bare_lab
    corpus = Corpus(lab, "interrupted", 8)
    running = corpus.command(4, "--concurrency", "1")
    until(corpus.staged, running)
    finished = running.send(number)
    assert finished.status == status, finished.output
    assert f"{word}: what is finished is kept" in finished.output
    assert "Traceback" not in finished.output
    assert processes.wait_until(lambda: not lab.leftovers(), SOON_S, 0.5), lab.leftovers()
    assert server.read_state(lab.home) is None
    assert not list(lab.home.ray_sessions.glob("*"))


def test_a_killed_embedded_server_is_started_again_once_and_the_ingest_goes_on(
    bare_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of an ingest, with another command that shares the server."""
    lab = bare_lab
    monkeypatch.setattr(server, "PREFERRED_PORT", 0)  # while the server is away, another test could take that port
    claimed = server.claim(lab.home)
    sharing = lab.start("ui")
    sharing.wait_for("Ctrl-C")
    corpus = Corpus(lab, "shared", 12)
    running = in_the_second(corpus)
    server.release(lab.home, claimed)
    before = server.read_state(lab.home)
    assert before is not None
    assert len(before.users) == 2, "the two commands"
    os.kill(before.process.pid, signal.SIGKILL)
    corpus.hurry()
    finished = running.finish()
    assert finished.status == 0, finished.output
    assert finished.summary["unaccounted"] == 0
    assert finished.summary["errors"] == []
    corpus.expect_complete()
    after = server.read_state(lab.home)
    assert after is not None
    assert (after.port, after.process.alive()) == (before.port, True), "the other command still uses it"
    assert sharing.send(signal.SIGINT).status in (0, 130)
    assert (finished.output + sharing.output()).count(AGAIN) == 1, "an orderly end starts nothing"
    assert processes.wait_until(lambda: not lab.leftovers(), SOON_S, 0.5), lab.leftovers()
    assert not after.process.alive()
    assert server.read_state(lab.home) is None


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_command_ends_soon_while_its_server_is_away(
    bare_lab: Lab, number: signal.Signals, status: int
) -> None:
    """A server that is given: an embedded one is not away for long."""
    lab = bare_lab
    lab.server = GivenServer(lab)
    lab.server.wait_answer()
    running = in_the_second(Corpus(lab, "away", 12))
    lab.server.stop()
    began = time.monotonic()
    finished = running.send(number)
    assert time.monotonic() - began < 55, "a few seconds; Prefect's own retries take more than a minute"
    assert finished.status == status, finished.output
    assert ": what is finished is kept" in finished.output


def test_the_server_of_a_killed_command_ends_by_itself(bare_lab: Lab) -> None:
    lab = bare_lab
    running = lab.start("ui")
    running.wait_for("Prefect UI: http://127.0.0.1:")
    state = server.read_state(lab.home)
    assert state is not None
    running.send(signal.SIGKILL)
    assert processes.wait_until(lambda: not state.process.alive(), SOON_S, 0.2)
    assert server.read_state(lab.home) is None


def test_the_server_of_a_home_that_is_gone_ends_by_itself(bare_lab: Lab) -> None:
    lab = bare_lab
    running = lab.start("ui")
    running.wait_for("Ctrl-C")
    state = server.read_state(lab.home)
    assert state is not None
    lab.home.root.rename(lab.directory / "gone")
    assert processes.wait_until(lambda: not state.process.alive(), SOON_S, 0.2)
    running.send(signal.SIGKILL)


def test_ui_serves_the_page_and_tells_it_where_its_api_is(bare_lab: Lab) -> None:
    import json
    import urllib.request

    lab = bare_lab
    running = lab.start("ui")
    running.wait_for("Ctrl-C")
    state = server.read_state(lab.home)
    assert state is not None
    address = f"http://127.0.0.1:{state.port}"
    assert f"Prefect UI: {address}" in running.output()
    with urllib.request.urlopen(f"{address}/ui-settings", timeout=30) as answer:
        assert json.loads(answer.read())["api_url"] == f"{address}/api"
    with urllib.request.urlopen(address, timeout=30) as answer:
        assert b"<html" in answer.read().lower()
    assert running.send(signal.SIGINT).status in (0, 130)
    assert processes.wait_until(lambda: not state.process.alive(), SOON_S)


def test_a_server_that_is_not_there_is_named(bare_lab: Lab) -> None:
    """By our own short wait for it: Prefect's, of minutes, has other words."""
    lab = bare_lab
    source = lab.corpus("corpus", a="a")
    finished = lab.ingest(source, lab.directory / "table", PREFECT_API_URL="http://127.0.0.1:9/api")
    assert finished.status == 3
    assert "no Prefect server answers at http://127.0.0.1:9/api" in finished.output
    assert "PREFECT_API_URL" in finished.output
    assert "Traceback" not in finished.output


def test_a_cluster_that_is_not_there_is_named(lab: Lab) -> None:
    """By our own look for it: Ray's wait, of minutes, has other words."""
    source = lab.corpus("nowhere", a="a")
    finished = lab.ingest(source, lab.directory / "nowhere-table", RAY_ADDRESS="127.0.0.1:9")
    assert finished.status == 3
    assert "no Ray cluster answers at 127.0.0.1:9" in finished.output
    assert "RAY_ADDRESS" in finished.output
    assert "Traceback" not in finished.output
