"""Engine hosts: warm across flow runs, listed, drained, stopped, killed."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from rayorch_flows.orchestration.ingest.prepared_flow import prepare
from rayorch_flows.orchestration.server import processes
from rayorch_flows.program.plan import Plan
from rayorch_flows.runtime.host.client import host_name
from tests.cli.counted import COUNTED, Corpus
from tests.cli.lab import SOON_S, Finished, Lab
from tests.cli.pool import until
from tests.orchestration.toy_flow import make

pytestmark = [pytest.mark.prefect, pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]


def ingest(lab: Lab, name: str, delay: str, *arguments: str) -> Finished:
    """By a form of the Pipeline that the delay tells from others."""
    source = lab.corpus(name, **{f"f{n}": f"line {n}" for n in range(6)})
    finished = lab.ingest(source, lab.directory / f"{name}-table", *arguments, RAYORCH_TOY_DELAY=delay)
    assert finished.status == 0, finished.output
    return finished


def host_of(lab: Lab, plan: Plan) -> dict[str, Any]:
    (host,) = [each for each in lab.engines() if each["host"] == host_name(plan)]
    return host


def toy_plan(delay: str) -> Plan:
    return make(float(delay)).compile()


def test_models_load_once_for_any_number_of_ingests(lab: Lab) -> None:
    before = len(lab.notes("construct"))
    for number in range(2):
        ingest(lab, f"warm{number}", "0.0001", "--microbatch-size", "2")
    assert len(lab.notes("construct")) - before == 2, "one actor each for Read and Upper"
    host = host_of(lab, toy_plan("0.0001"))
    assert host["pipeline"] == "Toy"
    assert sum(host["actors"].values()) == 3
    text = lab.run("engines").output
    assert host["host"] in text
    assert "microbatches  none" in text


def test_another_form_of_the_pipeline_has_its_own_host_and_the_idle_one_drains(lab: Lab) -> None:
    ingest(lab, "older", "0.0002")
    old, new = host_name(toy_plan("0.0002")), host_name(toy_plan("0.0003"))
    assert not host_of(lab, toy_plan("0.0002"))["draining"]
    assert f"Draining {old}" in ingest(lab, "newer", "0.0003").output
    assert new in [each["host"] for each in lab.engines()]
    assert processes.wait_until(lambda: old not in [each["host"] for each in lab.engines()], SOON_S, 1)


def test_a_host_can_be_stopped(lab: Lab) -> None:
    ingest(lab, "stopped", "0.0004")
    name = host_of(lab, toy_plan("0.0004"))["host"]
    stopped = lab.run("engines", "--stop", name)
    assert stopped.status == 0, stopped.output
    assert processes.wait_until(lambda: name not in [each["host"] for each in lab.engines()], SOON_S, 1)
    for other in lab.engines():  # of the tests before; one that drains may be gone by itself
        lab.run("engines", "--stop", other["host"])
    assert processes.wait_until(lambda: lab.engines() == [], SOON_S, 1)
    assert "No engine host is running" in lab.run("engines").output
    unknown = lab.run("engines", "--drain", name)
    assert unknown.status == 2
    assert "no engine host" in unknown.output


def test_a_killed_host_costs_no_source_and_no_finished_parent(lab: Lab) -> None:
    """Some sources are finished and the rows of others wait when the host is killed."""
    corpus = Corpus(lab, "hostless", 12)
    command = corpus.command(12)
    until(lambda: corpus.staged() and corpus.begun(), command)
    host = host_of(lab, prepare(COUNTED).plan)
    assert host["microbatches"]
    kept = corpus.staged()
    waiting = [stem for stem in corpus.stems if not corpus.done(stem)[f"shout {stem} 0"]]
    assert waiting
    os.kill(host["pid"], signal.SIGKILL)
    corpus.hurry()
    finished = command.finish()
    assert finished.status == 0, finished.output
    assert finished.summary["present"] == 12
    corpus.expect_complete()
    corpus.expect_done_once(kept)
    assert [stem for stem in waiting if corpus.done(stem)[f"read {stem}"] < 2] == [], "it was not killed before them"
