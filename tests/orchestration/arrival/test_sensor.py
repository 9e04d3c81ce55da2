"""What the sensor finds when it looks."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from rayorch_flows.orchestration.arrival.sensor import Look, look
from rayorch_flows.orchestration.ingest.prepared_flow import PreparedFlow, prepare
from rayorch_flows.orchestration.ingest.stored_microbatch import record_table_of
from rayorch_flows.orchestration.settings.places import Places, SourcePlace, TablePlace, Tuning
from rayorch_flows.program.outcomes import Cause, CauseKind
from rayorch_flows.records.lifecycle import clean_up, commit_microbatch, plan_ingest
from rayorch_flows.records.source import list_sources

TOY = str(Path(__file__).parents[1].joinpath("toy_flow.py")) + ":FLOW"

_opened: list[str] = []


def _note_opened(event: str, arguments: Any) -> None:
    if event == "open" and str(arguments[0]).endswith(".txt"):
        _opened.append(arguments[0])


sys.addaudithook(_note_opened)


@pytest.fixture
def seen(tmp_path: Path) -> tuple[Places, PreparedFlow]:
    """A source of three files, all of them in the table."""
    source = tmp_path / "source"
    source.mkdir()
    for name in "abc":
        (source / f"{name}.txt").write_text(name)
    prepared = prepare(TOY)
    places = Places(TablePlace(str(tmp_path / "table")), SourcePlace(str(source)), None, Tuning())
    table = record_table_of(places.table, prepared)
    plan = plan_ingest(
        table,
        list_sources(str(source), ("*.txt",), problems=[]),
        flow="toy",
        semantic_fingerprint=prepared.fingerprint,
        microbatch_size=2,
    )
    for manifest in plan.microbatches:
        commit_microbatch(table, manifest, flow_run_id="", unfinished=Cause(CauseKind.TIMEOUT, "late"))
        clean_up(table, manifest)
    return places, prepared


def test_a_look_at_files_that_are_in_the_table_opens_none_of_them(seen: tuple[Places, PreparedFlow]) -> None:
    _opened.clear()
    assert look(*seen, settle_s=0) == Look(listed=3, pending=False, unsettled=0, settled_in_s=0.5)
    assert _opened == []


def test_a_look_opens_what_is_new_and_nothing_else(seen: tuple[Places, PreparedFlow]) -> None:
    new = Path(seen[0].source.uri) / "d.txt"
    new.write_text("d")
    _opened.clear()
    assert look(*seen, settle_s=0).pending
    assert _opened == [str(new)]


def test_a_look_waits_for_what_has_just_been_written(seen: tuple[Places, PreparedFlow]) -> None:
    (Path(seen[0].source.uri) / "d.txt").write_text("d")
    _opened.clear()
    found = look(*seen, settle_s=60)
    assert (found.pending, found.unsettled) == (False, 1)
    assert 50 < found.settled_in_s <= 60.5
    assert _opened == []
