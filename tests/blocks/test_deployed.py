"""Deployments with the names of blocks as their parameters: in processes of their own, still without secrets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rayorch_flows.records.table import RecordTable
from tests.blocks.lab import BlockLab
from tests.blocks.store import a_store
from tests.blocks.test_ingest import FILES, READER, SAVE, SOURCE_SECRET
from tests.cli.lab import Lab
from tests.cli.pool import finished, start
from tests.cli.test_deployments import deployed

pytestmark = [pytest.mark.prefect, pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]
__all__ = ["deployed"]


@pytest.fixture(scope="module")
def lab(block_lab: BlockLab) -> Lab:
    return block_lab.lab


def test_names_go_from_flow_to_flow(block_lab: BlockLab, deployed: Lab) -> None:
    table = deployed.directory / "deployed-books"
    token = deployed.home.ray_token.read_text()
    with a_store(SOURCE_SECRET, FILES) as uri:
        block_lab.python(SAVE, uri, str(table))
        address = deployed.environment["RAY_ADDRESS"]
        block_lab.python(
            f"from rayorch_flows.blocks import *\nRayCluster(address={address!r}, token={token!r}).save('big')"
        )
        run = start(
            deployed,
            "watch-source",
            source="corpus-source/docs",
            table="record-table/books",
            flow=READER,
            settle_s=0,
            cluster="ray-cluster/big",
            engine={"line": {"replicas": 2, "recovery": "isolate_tail"}},
            deployment="ingest-microbatch/ingest-microbatch",
        )
        ended = finished(deployed, run)
    assert ended["state_type"] == "COMPLETED", ended["state"]
    outcomes = {
        Path(row["uri"]).name: row["outcome"] for row in RecordTable.open(table).rows(["uri", "outcome"]).to_pylist()
    }
    assert outcomes == {"a.txt": "present", "b.txt": "present", "broken.txt": "failed"}
    runs = [each["parameters"] for each in deployed.api("flow_runs/filter", {"limit": 200})]
    (microbatch,) = [each for each in runs if "microbatch" in each]
    del microbatch["microbatch"]
    assert microbatch == {
        "flow": READER,
        "source": "corpus-source/docs",
        "table": "record-table/books",
        "cluster": "ray-cluster/big",
        "engine": {"line": {"replicas": 2, "recovery": "isolate_tail"}},
    }
    logs = json.dumps(deployed.api("logs/filter", {"limit": 200}))
    said = logs + (deployed.directory / "worker.log").read_text()
    assert "Committed 3 rows" in said
    assert "hunter2" not in said
    assert token not in said
    for file in [*deployed.home.prefect.rglob("*"), *table.rglob("*")]:
        data = file.read_bytes() if file.is_file() else b""
        assert b"hunter2" not in data, file
        assert token.encode() not in data, file
