"""The command on a real server and a real Ray, with a flow whose Functions are trivial."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from rayorch_flows.records.table import RecordTable
from tests.cli.lab import Finished, Lab

UNAVAILABLE = str(Path(__file__).parents[1] / "orchestration" / "unavailable_flow.py") + ":FLOW"

pytestmark = [pytest.mark.prefect, pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def first(lab: Lab) -> tuple[Path, Path, Finished]:
    """A first run over a corpus with one good, one locked, one shaky file, and one with a bad line."""
    source = lab.corpus(
        "first",
        good="one\ntwo",
        hole="fine\nBAD\nfine",
        locked="ENCRYPTED",
        shaky=f"SHAKY {lab.directory}/first-shaky",
        empty="",
    )
    table = lab.directory / "first-table"
    return source, table, lab.ingest(source, table, "--microbatch-size", "3")


def rows(table: Path) -> dict[str, dict[str, Any]]:
    found = RecordTable.open(table).rows().to_pylist()
    named = {Path(row["uri"]).stem: row for row in found}
    assert len(named) == len(found), "a source has two rows"
    return named


def test_every_source_is_accounted_for(first: tuple[Path, Path, Finished]) -> None:
    _, table, finished = first
    assert finished.status == 0, finished.output
    summary = finished.summary
    assert (summary["sources"], summary["present"], summary["failed"], summary["dropped"]) == (5, 4, 1, 0)
    assert summary["unchanged"] == summary["unaccounted"] == 0
    assert summary["causes"] == {"encrypted": 1}
    assert summary["children"] == 6
    assert summary["children_failed"] == 1
    assert summary["table"] == str(table)
    assert summary["elapsed_s"] > 0
    assert {call["call"] for call in summary["calls"]} == {"read", "upper", "join"}
    found = rows(table)
    assert {name: row["outcome"] for name, row in found.items()} == {
        "good": "present", "hole": "present", "locked": "failed", "shaky": "present", "empty": "present",
    }  # fmt: skip
    assert found["good"]["text"] == "ONE\nTWO"
    assert found["locked"]["cause_kind"] == "encrypted"
    assert [child["outcome"] for child in found["hole"]["children"]] == ["present", "failed", "present"]


def test_the_output_tells_the_story_in_plain_lines(first: tuple[Path, Path, Finished]) -> None:
    source, table, finished = first
    text = finished.output
    assert "\x1b" not in text
    assert "5 sources, 0 in the table already, 5 to ingest in 2 microbatches" in text
    assert re.search(r"Microbatch \w{10}: \d present, \d failed, 0 dropped", text)
    assert "Ingested 5 of 5 sources" in text
    assert "4 present, 1 failed, 0 dropped" in text
    assert re.search(r"lines +6, [\d.]+/s, 1 failed", text)
    assert f"rayorch-flows failures {table}" in text
    assert "encrypted 1" in text
    story = [line for line in text.splitlines() if " of 5 sources, " not in line]  # a slow machine tells more progress
    assert len(story) < 30, "log noise drowns the story"
    assert str(source) not in text or "Traceback" not in text


def test_failures_lists_sources_and_children(lab: Lab, first: tuple[Path, Path, Finished]) -> None:
    _, table, _ = first
    shown = lab.run("failures", table)
    assert shown.status == 0
    assert "encrypted" in shown.output
    assert "locked.txt" in shown.output
    assert re.search(r"hole\.txt \[line 1\]", shown.output)
    assert "2 failures: 1 encrypted, 1 function_error" in shown.output
    only = lab.run("failures", table, "--kind", "encrypted", "--json")
    assert [line["uri"].endswith("locked.txt") for line in map(_json, only.output.splitlines())] == [True]


def _json(line: str) -> Any:
    import json

    return json.loads(line)


def test_a_second_run_runs_no_function(lab: Lab, first: tuple[Path, Path, Finished]) -> None:
    source, table, _ = first
    before = lab.notes()
    finished = lab.ingest(source, table)
    assert finished.status == 0
    assert "no Function was run" in finished.output
    assert "Ray at" not in finished.output
    assert (finished.summary["sources"], finished.summary["unchanged"]) == (5, 5)
    assert finished.summary["calls"] == []
    assert lab.notes() == before


def test_only_new_and_changed_sources_are_ingested(lab: Lab) -> None:
    source = lab.corpus("changing", same="same", changed="before")
    table = lab.directory / "changing-table"
    assert lab.ingest(source, table).status == 0
    (source / "changed.txt").write_text("afterwards")
    (source / "new.txt").write_text("new")
    count = len(lab.notes("read"))
    finished = lab.ingest(source, table)
    assert (finished.summary["unchanged"], finished.summary["present"]) == (1, 2)
    assert sorted(Path(line.split()[1]).stem for line in lab.notes("read")[count:]) == ["changed", "new"]
    current = RecordTable.open(table).current(["uri", "text"]).to_pylist()
    assert {Path(row["uri"]).stem: row["text"] for row in current} == {
        "same": "SAME", "changed": "AFTERWARDS", "new": "NEW",
    }  # fmt: skip


def test_what_prefect_shows(lab: Lab, first: tuple[Path, Path, Finished]) -> None:
    """Parent run, a run per microbatch with exactly one task, reports and progress as artifacts, events."""

    def tasks_of(run: dict[str, Any]) -> list[Any]:
        ours = {"task_runs": {"flow_run_id": {"any_": [run["id"]]}}}
        return lab.eventually(lambda: lab.api("task_runs/filter", ours), run["run_count"])

    _, table, finished = first
    parent = finished.summary["flow_run_id"]
    everything = lab.api("flow_runs/filter", {"limit": 200})
    children = [run for run in everything if run["parameters"].get("table") == str(table) and run["id"] != parent]
    children = [run for run in children if "microbatch" in run["parameters"]]
    assert len(children) == 2
    assert {run["state_type"] for run in children} == {"COMPLETED"}
    assert sorted(run["run_count"] for run in children) == [1, 2], "the shaky microbatch takes a second attempt"
    for run in children:
        tasks = tasks_of(run)
        assert {task["name"] for task in tasks} == {"engine"}
        assert len(tasks) == run["run_count"]
        artifacts = lab.api("artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [run["id"]]}}})
        assert {artifact["type"] for artifact in artifacts} - {None} == {"progress", "markdown"}
        assert all(artifact["data"] == 100 for artifact in artifacts if artifact["type"] == "progress")
        report = next(artifact["data"] for artifact in artifacts if artifact["type"] == "markdown")
        assert "| upper | line |" in report
        assert report.count("data:image/svg+xml;base64,") == 2
    rolled = lab.api("artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [parent]}}})
    assert {(artifact["key"], artifact["type"]) for artifact in rolled if artifact["type"]} == {
        ("ingest-report", "markdown"), ("ingest-progress", "progress"),
    }  # fmt: skip
    assert all(run["id"] in _report(rolled) for run in children), "the roll-up links to its microbatches"

    def events(name: str) -> list[Any]:
        found = lab.api("events/filter", {"filter": {"event": {"name": [name]}}, "limit": 50})["events"]
        return [event for event in found if str(table) in event["resource"]["prefect.resource.id"]]

    assert len(lab.eventually(lambda: events("rayorch.microbatch.committed"), 2)) == 2
    completed = lab.eventually(lambda: events("rayorch.corpus.completed"), 1)
    assert [each["payload"]["present"] for each in completed if each["payload"]["flow_run_id"] == parent] == [4]


def _report(artifacts: list[Any]) -> str:
    return next(artifact["data"] for artifact in artifacts if artifact["type"] == "markdown")


def test_an_aborted_microbatch_is_accounted_for_and_seen(lab: Lab) -> None:
    """A Function that raises under the aborting policy: retries, then failed rows, a failed run with its report."""
    source = lab.corpus("poisoned", a="fine", b="POISON")
    table = lab.directory / "poisoned-table"
    finished = lab.ingest(source, table, "--max-failed", "0")
    assert finished.status == 1, finished.output
    assert "poison in the batch" in finished.output
    assert finished.summary["failed"] >= 1
    assert finished.summary["sources"] == finished.summary["present"] + finished.summary["failed"] == 2
    assert rows(table)["b"]["cause_kind"] == "function_error"
    runs = lab.api("flow_runs/filter", {"flow_runs": {"state": {"type": {"any_": ["FAILED"]}}}})
    (run,) = [run for run in runs if run["parameters"].get("table") == str(table) and "microbatch" in run["parameters"]]
    assert run["run_count"] == 3
    artifacts = lab.api("artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [run["id"]]}}})
    assert "poison in the batch" in _report(artifacts)


@pytest.mark.parametrize(
    ("lacks", "said", "next_step"),
    [
        (
            "gpu",
            "no actor of 'read' could be placed within 10 s: each asks for {'num_cpus': 0, 'num_gpus': 1}",
            "ask for",
        ),
        (
            "package",
            "the Function of 'read' cannot be constructed: ModuleNotFoundError",
            "install it where the workers",
        ),
    ],
)
def test_a_pipeline_that_cannot_run_here_says_so_and_costs_no_source_its_row(
    lab: Lab, lacks: str, said: str, next_step: str
) -> None:
    source = lab.corpus(f"lacks-{lacks}", **{f"f{n}": "1" for n in range(5)})
    table = lab.directory / f"lacks-{lacks}-table"
    command = ("ingest", source, "--table", table, "--flow", UNAVAILABLE, "--json", "--microbatch-size", "1")
    finished = lab.run(*command, RAYORCH_TOY_LACKS=lacks)
    assert finished.status == 3, finished.output
    assert said in finished.output
    assert next_step in finished.output
    assert "Traceback" not in finished.output
    assert finished.output.count("is not committed") == 2, "two run at once, and those behind them need not try"
    assert rows(table) == {}
    runs = lab.api("flow_runs/filter", {"flow_runs": {"state": {"type": {"any_": ["FAILED"]}}}})
    ours = [run for run in runs if run["parameters"].get("table") == str(table) and "microbatch" in run["parameters"]]
    assert [run["run_count"] for run in ours] == [1, 1], "trying again would not help"
    mended = lab.run(*command)
    assert mended.status == 0, mended.output
    assert len(rows(table)) == 5


def test_an_empty_source_says_so(lab: Lab) -> None:
    source = lab.corpus("nothing")
    finished = lab.ingest(source, lab.directory / "nothing-table")
    assert finished.status == 0
    assert "No file of the source counts" in finished.output


def test_the_error_budget(lab: Lab) -> None:
    source = lab.corpus("budget", a="fine", b="ENCRYPTED", c="ENCRYPTED")
    table = lab.directory / "budget-table"
    finished = lab.ingest(source, table, "--max-failed", "1")
    assert finished.status == 1
    assert "exceeded: 2 failed, 1 may" in finished.output
    again = lab.ingest(source, table, "--max-failed", "1")
    assert again.status == 0, "only this run's failures count"


def test_a_limit_leaves_the_rest_for_later(lab: Lab) -> None:
    source = lab.corpus("limited", a="1", b="2", c="3")
    table = lab.directory / "limited-table"
    assert lab.ingest(source, table, "--limit", "2").summary["present"] == 2
    assert lab.ingest(source, table, "--limit", "2").summary["present"] == 1
    assert sorted(rows(table)) == ["a", "b", "c"]
