from __future__ import annotations

from collections.abc import Generator

import pytest

from rayorch_flows.orchestration.server import prefect_server as server
from tests.blocks.lab import BlockLab
from tests.cli.lab import a_lab


@pytest.fixture(scope="module")
def block_lab() -> Generator[BlockLab]:
    """One home, one server and one cluster for the tests of a module."""
    with a_lab(shared=True) as lab:
        yield BlockLab(lab)


@pytest.fixture(scope="module")
def server_lab() -> Generator[BlockLab]:
    """One home and one server, without a cluster."""
    with a_lab(shared=False) as lab:
        server.wait_answer(lab.home, server.claim(lab.home))
        yield BlockLab(lab)
