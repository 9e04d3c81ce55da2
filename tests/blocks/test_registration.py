"""Blocks on a real server: registered by one command, saved, loaded by name, and closed to readers without rights."""

from __future__ import annotations

import json

import pytest

from tests.blocks.lab import BlockLab, script_path

pytestmark = [pytest.mark.prefect, pytest.mark.slow, pytest.mark.timeout(900)]
OURS = {"corpus-source", "engine-settings", "ray-cluster", "record-table"}

SAVE = """
from rayorch_flows.blocks import *
CorpusSource(uri="s3://scans/", patterns=["*.pdf"], storage_options={"secret": "hunter2-secret"}).save("night-ly")
RecordTable(uri="s3://books", storage_options={"AWS_SECRET_ACCESS_KEY": "hunter2-secret"}).save("books")
RayCluster(address="head:6379", token="hunter2-secret").save("big")
EngineSettings(calls={"ocr": {"replicas": 8, "recovery": "retry_tail", "max_retries": 2}}).save("fast")
"""

LOAD = """
import asyncio
from rayorch_flows.orchestration.settings import places
async def main():
    source = await places.source_place("corpus-source/night-ly")
    print(source, source.options)
    table = await places.table_place("record-table/books")
    print(table, table.options)
    cluster = await places.cluster_place("ray-cluster/big")
    print(cluster, cluster.token)
    print((await places.tuning("engine-settings/fast")).options())
    try:
        await places.source_place("corpus-source/nowhere")
    except Exception as error:
        print(type(error).__name__, error)
asyncio.run(main())
"""


def test_one_command_registers_them(server_lab: BlockLab) -> None:
    server_lab.forget_block_types(OURS)  # where the project is installed, the server has registered them itself
    assert not server_lab.block_types() & OURS
    done = server_lab.lab.run("blocks", "register")
    assert (done.status, set(done.output.split())) == (0, OURS), done.output
    assert server_lab.block_types() >= OURS
    again = server_lab.lab.run("blocks", "register")
    assert again.status == 0, again.output


def test_prefects_own_command_does_too(server_lab: BlockLab) -> None:
    said = server_lab.command(script_path("prefect"), "block", "register", "-m", "rayorch_flows.blocks")
    assert "Successfully registered 4 blocks" in said


def test_saved_and_loaded_by_name(server_lab: BlockLab) -> None:
    server_lab.python(SAVE)
    source, table, cluster, tuning, missing, *_ = server_lab.python(LOAD).splitlines()
    assert source == "SourcePlace(uri='s3://scans/', patterns=('*.pdf',)) {'secret': 'hunter2-secret'}"
    assert table == "TablePlace(uri='s3://books') {'AWS_SECRET_ACCESS_KEY': 'hunter2-secret'}"
    assert cluster == "ClusterPlace(address='head:6379', namespace='', runtime_env={}) hunter2-secret"
    assert "'replicas': 8" in tuning
    assert "max_udf_retries=2" in tuning
    assert missing == "UsageError there is no block corpus-source/nowhere"


def test_the_server_shows_no_secret(server_lab: BlockLab) -> None:
    server_lab.python(SAVE.replace(".save(", ".save(overwrite=True, name="))
    documents = server_lab.lab.api("block_documents/filter", {"include_secrets": False})
    assert {each["block_type"]["slug"] for each in documents} >= OURS
    assert "hunter2" not in json.dumps(documents)
    for file in server_lab.lab.home.prefect.rglob("*"):
        assert not file.is_file() or b"hunter2" not in file.read_bytes(), file
