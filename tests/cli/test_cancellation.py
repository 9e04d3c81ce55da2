"""Cancelling from the UI or the API, which both only change a state in the server."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.counted import AT_THE_ACTOR, Corpus
from tests.cli.lab import Lab
from tests.cli.pool import cancel, run_of, until

pytestmark = [pytest.mark.prefect, pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]


def running(lab: Lab, corpus: Corpus) -> list[dict[str, Any]]:
    found = lab.api("flow_runs/filter", {"flow_runs": {"state": {"type": {"any_": ["RUNNING"]}}}})
    return [run for run in found if run["parameters"].get("table") == str(corpus.table)]


def test_a_cancelled_microbatch_stops_alone_and_its_staged_parents_are_kept(lab: Lab) -> None:
    corpus = Corpus(lab, "alone", 16)
    command = corpus.command(8)
    until(lambda: corpus.staged() and corpus.begun(), command)
    microbatches = [run for run in running(lab, corpus) if "microbatch" in run["parameters"]]
    assert len(microbatches) == 2
    victim = next(run for run in microbatches if corpus.staged(run["parameters"]["microbatch"]))
    cancel(lab, victim, command)
    theirs = corpus.sources(victim["parameters"]["microbatch"])
    seen = corpus.count(theirs)
    corpus.hurry()
    finished = command.finish()
    assert finished.status == 3, finished.output
    assert (finished.summary["present"], finished.summary["unaccounted"]) == (8, 8)
    assert "cancelled: what is finished is staged" in finished.output
    assert run_of(lab, victim)["state_type"] == "CANCELLED", "the end of the run does not hide that it was cancelled"
    assert corpus.count(theirs) <= seen + AT_THE_ACTOR, "the engine goes on with cancelled work"
    kept = corpus.staged(victim["parameters"]["microbatch"])
    assert kept
    again = corpus.command(8).finish()
    assert again.status == 0, again.output
    assert (again.summary["present"], again.summary["unchanged"]) == (8, 8)
    corpus.expect_complete()
    corpus.expect_done_once(kept)


def test_a_cancelled_ingest_cancels_its_microbatches(lab: Lab) -> None:
    corpus = Corpus(lab, "whole", 24)
    command = corpus.command(4)
    until(corpus.staged, command)
    (parent,) = [run for run in running(lab, corpus) if "microbatch" not in run["parameters"]]
    cancel(lab, parent, command)
    corpus.hurry()
    finished = command.finish()
    assert finished.status == 3, finished.output
    assert not running(lab, corpus), "a microbatch outlived its ingest"
    assert finished.summary["unaccounted"] == 24
    assert "Traceback" not in finished.output
