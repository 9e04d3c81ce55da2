"""Commands that end too early: what they leave behind, and what the next one makes of it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import pytest

from rayorch_flows.orchestration import processes, server
from rayorch_flows.orchestration.server_keeper import AGAIN
from rayorch_flows.records.table import RecordTable
from tests.cli.lab import GivenServer, Lab

pytestmark = [pytest.mark.prefect, pytest.mark.ray, pytest.mark.slow]

SLOW = {"RAYORCH_TOY_DELAY": "0.25"}


def outcomes(table: Path) -> list[tuple[str, str, str]]:
    found = RecordTable.open(table).rows(["uri", "outcome", "text"]).to_pylist()
    return sorted((Path(row["uri"]).stem, row["outcome"], row["text"] or "") for row in found)


def files(count: int) -> dict[str, str]:
    return {f"f{number:02}": "\n".join(f"line {n}" for n in range(4)) for number in range(count)}


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
    source = lab.corpus("corpus", **files(12))
    table = lab.directory / "table"
    running = lab.start_ingest(source, table, "--microbatch-size", "4", "--concurrency", "1", **SLOW)
    running.wait_for("Microbatch ")
    assert "RAY_free_objects_period_milliseconds=100" in raylet_environment(running.process.pid), "for byte budgets"
    assert running.send(signal.SIGKILL).status == -signal.SIGKILL
    committed = {stem for stem, _, _ in outcomes(table)}
    assert 4 <= len(committed) < 12, "killed too early or too late for this test"
    again = lab.ingest(source, table, "--microbatch-size", "4", **SLOW)
    assert again.status == 0, again.output
    assert "left unfinished before" in again.output
    assert again.summary["unchanged"] == len(committed)
    assert again.summary["unaccounted"] == 0
    assert outcomes(table) == [(stem, "present", text.upper()) for stem, text in files(12).items()]
    for stem in committed:
        reads = [line for line in lab.notes("read") if Path(line.split()[1]).stem == stem]
        assert len(reads) == 1, f"{stem} was committed and done again"
    assert processes.wait_until(lambda: not lab.leftovers(), 30, 0.5), lab.leftovers()
    assert server.read_state(lab.home) is None, "the last user stops the server"


@pytest.mark.parametrize(
    ("number", "status", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_an_interrupted_command_leaves_nothing_running(
    bare_lab: Lab, number: signal.Signals, status: int, word: str
) -> None:
    lab = bare_lab
    source = lab.corpus("corpus", **files(8))
    table = lab.directory / "table"
    running = lab.start_ingest(source, table, "--microbatch-size", "4", "--concurrency", "1", **SLOW)
    running.wait_for("Ray at")
    assert processes.wait_until(lambda: bool(lab.notes("read")), 200)
    finished = running.send(number)
    assert finished.status == status, finished.output
    assert f"{word}: what is finished is kept" in finished.output
    assert "Traceback" not in finished.output
    assert processes.wait_until(lambda: not lab.leftovers(), 10, 0.5), lab.leftovers()
    assert server.read_state(lab.home) is None
    assert not list(lab.home.ray_sessions.glob("*"))


def test_a_killed_embedded_server_is_started_again_once_and_the_ingest_goes_on(bare_lab: Lab) -> None:
    """In the middle of an ingest, with another command that shares the server."""
    lab = bare_lab
    sharing = lab.start("ui")
    sharing.wait_for("Ctrl-C")
    source = lab.corpus("corpus", **files(12))
    table = lab.directory / "table"
    running = lab.start_ingest(source, table, "--microbatch-size", "4", "--concurrency", "1", **SLOW)
    running.wait_for("Microbatch ")
    before = server.read_state(lab.home)
    assert before is not None
    os.kill(before.process.pid, signal.SIGKILL)
    finished = running.finish()
    assert finished.status == 0, finished.output
    assert finished.summary["unaccounted"] == 0
    assert finished.summary["errors"] == []
    assert outcomes(table) == [(stem, "present", text.upper()) for stem, text in files(12).items()]
    after = server.read_state(lab.home)
    assert after is not None
    assert (after.port, after.process.alive()) == (before.port, True), "the other command still uses it"
    assert sharing.send(signal.SIGINT).status in (0, 130)
    assert (finished.output + sharing.output()).count(AGAIN) == 1, "an orderly end starts nothing"
    assert processes.wait_until(lambda: not lab.leftovers(), 30, 0.5), lab.leftovers()
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
    source = lab.corpus("corpus", **files(12))
    running = lab.start_ingest(source, lab.directory / "table", "--microbatch-size", "4", "--concurrency", "1", **SLOW)
    running.wait_for("Microbatch ")
    lab.server.stop()
    began = time.monotonic()
    finished = running.send(number)
    assert time.monotonic() - began < 30, "a few seconds; a busy machine may take more"
    assert finished.status == status, finished.output
    assert ": what is finished is kept" in finished.output


def test_the_server_of_a_killed_command_ends_by_itself(bare_lab: Lab) -> None:
    lab = bare_lab
    running = lab.start("ui")
    running.wait_for("Prefect UI: http://127.0.0.1:")
    state = server.read_state(lab.home)
    assert state is not None
    running.send(signal.SIGKILL)
    assert processes.wait_until(lambda: not state.process.alive(), 30, 0.2)
    assert server.read_state(lab.home) is None


def test_the_server_of_a_home_that_is_gone_ends_by_itself(bare_lab: Lab) -> None:
    lab = bare_lab
    running = lab.start("ui")
    running.wait_for("Ctrl-C")
    state = server.read_state(lab.home)
    assert state is not None
    lab.home.root.rename(lab.directory / "gone")
    assert processes.wait_until(lambda: not state.process.alive(), 30, 0.2)
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
    assert processes.wait_until(lambda: not state.process.alive(), 10)


def test_a_server_that_is_not_there_is_named_within_30_seconds(bare_lab: Lab) -> None:
    lab = bare_lab
    source = lab.corpus("corpus", a="a")
    began = time.monotonic()
    finished = lab.ingest(source, lab.directory / "table", PREFECT_API_URL="http://127.0.0.1:9/api")
    assert time.monotonic() - began < 40, "30 s and what a busy machine takes to start Python"
    assert finished.status == 3
    assert "no Prefect server answers at http://127.0.0.1:9/api" in finished.output
    assert "PREFECT_API_URL" in finished.output
    assert "Traceback" not in finished.output


def test_a_cluster_that_is_not_there_is_named_within_30_seconds(lab: Lab) -> None:
    source = lab.corpus("nowhere", a="a")
    began = time.monotonic()
    finished = lab.ingest(source, lab.directory / "nowhere-table", RAY_ADDRESS="127.0.0.1:9")
    assert time.monotonic() - began < 40
    assert finished.status == 3
    assert "no Ray cluster answers at 127.0.0.1:9" in finished.output
    assert "RAY_ADDRESS" in finished.output
    assert "Traceback" not in finished.output
