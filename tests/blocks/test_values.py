"""What the blocks and the plain values of flow parameters stand for, without a server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from prefect.blocks.core import Block
from pydantic import ValidationError

from rayorch_flows import InfrastructureError, RecoveryPolicy, UsageError
from rayorch_flows.blocks import CorpusSource, EngineSettings, RayCluster, RecordTable
from rayorch_flows.orchestration.settings import places
from rayorch_flows.orchestration.settings.call_settings import CallSettings
from rayorch_flows.orchestration.settings.places import ClusterPlace, SourcePlace, TablePlace, Tuning

BLOCKS: dict[str, Block] = {
    "corpus-source/scans": CorpusSource(uri="s3://scans/", patterns=["*.pdf"], storage_options={"key": "hunter2"}),
    "record-table/books": RecordTable(uri="s3://books", storage_options={"AWS_REGION": "x"}),
    "ray-cluster/big": RayCluster(address="head:6379", namespace="n", runtime_env={"pip": ["x"]}, token="hunter2"),
    "engine-settings/night": EngineSettings(calls={"ocr": {"replicas": 8}}),
}


@pytest.fixture(autouse=True)
def stored(monkeypatch: pytest.MonkeyPatch) -> None:
    async def aload(name: str) -> Block:
        if name.endswith("/stale"):
            try:
                CorpusSource(uri="", storage_options="hunter2")
            except ValidationError as error:
                raise RuntimeError("does not validate") from error
        if name not in BLOCKS:
            raise ValueError("Unable to find block document")
        return BLOCKS[name]

    monkeypatch.setattr(Block, "aload", aload)


def test_blocks_by_name() -> None:
    async def all_of_them() -> None:
        assert await places.source_place("corpus-source/scans") == SourcePlace(
            "s3://scans/", ("*.pdf",), {"key": "hunter2"}
        )
        assert await places.table_place("record-table/books") == TablePlace("s3://books", {"AWS_REGION": "x"})
        cluster = ClusterPlace("head:6379", "n", {"pip": ["x"]}, "hunter2")
        assert await places.cluster_place("ray-cluster/big") == cluster
        assert (await places.tuning("engine-settings/night")).options() == {"ocr": {"replicas": 8}}

    asyncio.run(all_of_them())


@pytest.mark.parametrize(
    "value", ["/data/corpus-source/x", "./corpus-source/scans", "corpus-source", "corpus-source/a/b", "s3://b/x"]
)
def test_plain_values(value: str) -> None:
    assert asyncio.run(places.source_place(value)) == SourcePlace(value)
    assert asyncio.run(places.table_place(value)) == TablePlace(value)
    assert asyncio.run(places.cluster_place(value)) == ClusterPlace(value)


def test_nothing_given() -> None:
    assert asyncio.run(places.cluster_place(None)) is None
    assert asyncio.run(places.cluster_place("")) is None
    assert asyncio.run(places.tuning(None)) == Tuning({})
    settings = {"ocr": CallSettings(replicas=2)}
    assert asyncio.run(places.tuning(settings)).options() == {"ocr": {"replicas": 2}}


@pytest.mark.parametrize(
    ("ask", "value", "words"),
    [
        (
            places.source_place,
            "corpus-source/nowhere",
            ["there is no block corpus-source/nowhere", "./corpus-source/nowhere"],
        ),
        (places.source_place, "record-table/books", ["another kind", "corpus-source/NAME"]),
        (places.source_place, "corpus-source/stale", ["does not hold together", "uri: ", "storage_options: "]),
        (places.cluster_place, "ray-cluster/none", ["there is no block ray-cluster/none"]),
        (places.tuning, "fast", ["by Call", "engine-settings/NAME"]),
    ],
)
def test_mistakes(ask: Any, value: str, words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        asyncio.run(ask(value))
    for word in words:
        assert word in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__context__ is None or caught.value.__suppress_context__, "a traceback prints no other error"


def test_a_block_type_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    from prefect.blocks.core import UnknownBlockType

    async def aload(name: str) -> Block:
        raise UnknownBlockType("No block class found")

    monkeypatch.setattr(Block, "aload", aload)
    with pytest.raises(InfrastructureError, match="not known here"):
        asyncio.run(places.source_place("corpus-source/x"))


@pytest.mark.parametrize("kind", [CorpusSource, RecordTable])
def test_a_password_in_a_uri_is_refused(kind: type[Block]) -> None:
    with pytest.raises(ValidationError, match="storage options") as caught:
        kind(uri="sftp://me:hunter2@host/data")
    assert "hunter2" not in str(caught.value)


def test_deltalake_takes_text_only() -> None:
    with pytest.raises(ValidationError, match="in quotes: AWS_ALLOW_HTTP, b"):
        RecordTable(uri="s3://x", storage_options={"AWS_ALLOW_HTTP": True, "a": "x", "b": 1})


@pytest.mark.parametrize(
    ("settings", "policy"),
    [
        ({"recovery": "abort"}, RecoveryPolicy.abort()),
        ({"recovery": "abort", "infra_retries": 0}, RecoveryPolicy.abort(infra_retries=0)),
        ({"recovery": "retry_batch"}, RecoveryPolicy.retry_batch()),
        ({"recovery": "retry_tail", "max_retries": 3}, RecoveryPolicy.retry_tail(max_retries=3)),
        ({"recovery": "isolate_tail", "infra_retries": 4}, RecoveryPolicy.isolate_tail(infra_retries=4)),
    ],
)
def test_recovery(settings: dict[str, Any], policy: RecoveryPolicy) -> None:
    assert CallSettings(**settings).options() == {"recovery": policy}


@pytest.mark.parametrize(
    "settings",
    [
        {"replicas": 0},
        {"batch_size": 0},
        {"num_gpus": -1},
        {"recovery": "hope"},
        {"max_retries": 1},
        {"infra_retries": 1},
        {"recovery": "abort", "max_retries": 1},
        {"recovery": "isolate_tail", "max_retries": 1},
        {"batchsize": 3},
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        CallSettings(**settings)
