"""The microbatches of one ingest."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from prefect.states import Completed

from rayorch_flows.orchestration.ingest import microbatch_runs
from rayorch_flows.orchestration.ingest.microbatch_runs import MicrobatchRuns
from rayorch_flows.orchestration.ingest.prepared_flow import prepare
from rayorch_flows.orchestration.ingest.stop_requests import Family
from rayorch_flows.orchestration.ingest.stored_microbatch import record_table_of
from rayorch_flows.orchestration.reporting.progress import Board
from rayorch_flows.orchestration.reporting.summary import MicrobatchSummary
from rayorch_flows.orchestration.server import outage
from rayorch_flows.orchestration.settings.ingest_parameters import IngestParameters
from rayorch_flows.orchestration.settings.places import TablePlace
from rayorch_flows.records.manifest import Manifest
from tests.orchestration.ingest.test_stored_microbatch import TOY


async def test_a_microbatch_that_begins_while_the_server_is_away_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Longer than Prefect itself does, which raises when it cannot make the flow run."""
    monkeypatch.setattr(outage, "_AGAIN_S", 0.0)
    troubles = [httpx.ConnectError("refused"), httpx.ConnectError("refused")]

    async def begin(microbatch: str, **parameters: Any) -> Any:
        if troubles:
            raise troubles.pop()
        return Completed(data=MicrobatchSummary(microbatch=microbatch, sources=1, present=1))

    monkeypatch.setattr(microbatch_runs, "ingest_microbatch", begin)
    prepared = prepare(TOY)
    table = record_table_of(TablePlace(str(tmp_path / "table")), prepared)
    asked = IngestParameters(source="inbox", table=table.uri, flow=TOY)
    run = MicrobatchRuns(table, asked, cast("Any", None), Board(tell=lambda line: None))
    manifest = Manifest(flow="toy", semantic_fingerprint=prepared.fingerprint, sources=())
    part = await run._one(manifest, Family(None))
    assert (part.microbatch, part.present, part.error) == (manifest.microbatch_id, 1, "")
