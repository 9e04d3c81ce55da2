"""A Ray cluster named by a block: its address, token, namespace and runtime environment are used."""

from __future__ import annotations

import json

import pytest

from tests.blocks.lab import BlockLab
from tests.cli.lab import Finished

pytestmark = [pytest.mark.prefect, pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]

ELSEWHERE = {"RAY_ADDRESS": "127.0.0.1:9", "RAY_AUTH_TOKEN_PATH": "/no/such/token"}
"""What the environment says, which the block replaces."""


def save(block_lab: BlockLab, name: str, address: str, **fields: object) -> None:
    made = f"RayCluster(address={address!r}, **{fields!r})"
    block_lab.python(f"from rayorch_flows.blocks import *\n{made}.save({name!r}, overwrite=True)")


def ingest(block_lab: BlockLab, name: str) -> Finished:
    lab = block_lab.lab
    corpus, table = lab.corpus(name, a="one\ntwo", b="three"), lab.directory / f"{name}-table"
    return lab.ingest(corpus, table, "--cluster", f"ray-cluster/{name}", **ELSEWHERE)


def engines(block_lab: BlockLab, *arguments: str, **environment: str) -> list[str]:
    done = block_lab.lab.run("engines", "--json", *arguments, **environment)
    assert done.status == 0, done.output
    return [json.loads(line)["host"] for line in done.output.splitlines() if line.startswith("{")]


def test_all_of_it_is_used(block_lab: BlockLab) -> None:
    lab = block_lab.lab
    token = lab.home.ray_token.read_text()
    log = lab.directory / "cluster-toy.log"
    runtime_env = {"env_vars": {"RAYORCH_TOY_LOG": str(log)}}
    save(block_lab, "big", lab.environment["RAY_ADDRESS"], token=token, namespace="big", runtime_env=runtime_env)
    done = ingest(block_lab, "big")
    assert done.status == 0, done.output
    assert done.summary["present"] == 2
    assert "construct Read" in log.read_text().splitlines(), "the runtime environment"
    assert engines(block_lab, "--cluster", "ray-cluster/big", **ELSEWHERE), "the namespace"
    assert not engines(block_lab), "and no other"
    assert token not in done.output
    for file in lab.home.prefect.rglob("*"):
        assert not file.is_file() or token.encode() not in file.read_bytes(), file


# Ray itself, with its own way of waiting, names no token: these words come from the request that is made before.
REFUSED = "does not accept this token"
NONE_GIVEN = "wants a token, and none was given"


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"RAY_AUTH_TOKEN": "0" * 64}, REFUSED),
        ({"RAY_AUTH_MODE": "disabled"}, NONE_GIVEN),
        ({"RAY_AUTH_TOKEN_PATH": "/no/such/token"}, "there is no token: RAY_AUTH_TOKEN_PATH"),
    ],
)
def test_a_wrong_token_in_the_environment(block_lab: BlockLab, variables: dict[str, str], message: str) -> None:
    lab = block_lab.lab
    table = lab.directory / "no-table"
    done = lab.ingest(lab.directory, table, **variables)
    assert (done.status, message in done.output) == (3, True), done.output
    assert "next: " in done.output
    assert not table.exists()


def test_a_wrong_token_in_a_block(block_lab: BlockLab) -> None:
    save(block_lab, "closed", block_lab.lab.environment["RAY_ADDRESS"], token="0" * 64)
    done = ingest(block_lab, "closed")
    assert (done.status, REFUSED in done.output) == (3, True), done.output
    assert "Traceback" not in done.output
    assert not (block_lab.lab.directory / "closed-table").exists()


def test_no_cluster_there(block_lab: BlockLab) -> None:
    save(block_lab, "gone", "127.0.0.1:9")
    done = ingest(block_lab, "gone")
    assert (done.status, "no Ray cluster answers at 127.0.0.1:9" in done.output) == (3, True), done.output
    assert not (block_lab.lab.directory / "gone-table").exists()


def test_the_port_of_something_else(block_lab: BlockLab) -> None:
    head = block_lab.lab.environment["RAY_ADDRESS"]
    done = block_lab.lab.run("engines", "--cluster", f"ray://{head}")
    assert (done.status, f"wrong one for the address ray://{head}" in done.output) == (3, True), done.output
