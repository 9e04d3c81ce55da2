"""What a flow run finds of its microbatch."""

from __future__ import annotations

from pathlib import Path

import pytest

from rayorch_flows.errors import TableError
from rayorch_flows.orchestration.ingest.prepared_flow import prepare
from rayorch_flows.orchestration.ingest.stored_microbatch import (
    StoredMicrobatch,
    find_committed,
    open_microbatch,
    record_table_of,
)
from rayorch_flows.orchestration.reporting.summary import MicrobatchSummary
from rayorch_flows.orchestration.settings.places import Places, SourcePlace, TablePlace
from rayorch_flows.program.outcomes import Cause, CauseKind
from rayorch_flows.records.lifecycle import clean_up, commit_microbatch, plan_ingest
from rayorch_flows.records.source import list_sources

TOY = str(Path(__file__).parents[1].joinpath("toy_flow.py")) + ":FLOW"


def test_a_microbatch_whose_run_was_killed_after_the_commit_is_found_committed(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in "ab":
        (source / f"{name}.txt").write_text(name)
    prepared = prepare(TOY)
    places = Places(TablePlace(str(tmp_path / "table")), SourcePlace(str(source)), None, {})
    table = record_table_of(places.table, prepared)
    (manifest,) = plan_ingest(
        table,
        list_sources(str(source), ("*.txt",), problems=[]),
        flow="toy",
        semantic_fingerprint=prepared.fingerprint,
        microbatch_size=2,
    ).microbatches
    stored = open_microbatch(places, prepared, manifest.microbatch_id)
    assert isinstance(stored, StoredMicrobatch)
    assert stored.rows == [0, 1]
    assert find_committed(table, prepared.fingerprint, manifest.microbatch_id, "lines") is None
    commit_microbatch(table, manifest, flow_run_id="", unfinished=Cause(CauseKind.TIMEOUT, "late"))
    clean_up(table, manifest)
    said = find_committed(table, prepared.fingerprint, manifest.microbatch_id, "lines")
    assert said is not None
    assert (said.committed, said.failed, said.child_noun) == (True, 2, "lines")
    found = open_microbatch(places, prepared, manifest.microbatch_id)
    assert isinstance(found, MicrobatchSummary)
    assert (found.committed, found.sources, found.failed) == (True, 2, 2)
    summary = MicrobatchSummary(microbatch=manifest.microbatch_id, sources=2)
    stored.commit(summary, "", 1, None)
    assert (summary.committed, summary.failed, summary.causes) == (True, 2, {"timeout": 2}), "another run was faster"
    with pytest.raises(TableError, match="no manifest"):
        open_microbatch(places, prepared, "unknown")
