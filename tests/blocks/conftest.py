from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.blocks.lab import BlockLab
from tests.cli.lab import a_lab


@pytest.fixture(scope="module")
def block_lab() -> Generator[BlockLab]:
    """One home and one server for the tests of a module."""
    with a_lab(with_server=True) as lab:
        yield BlockLab(lab)
