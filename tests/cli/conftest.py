from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.cli.lab import Lab, a_lab


@pytest.fixture(scope="module")
def lab() -> Generator[Lab]:
    """One home, one server and one cluster for the tests of a module."""
    with a_lab(shared=True) as lab:
        yield lab


@pytest.fixture
def bare_lab() -> Generator[Lab]:
    """A home in which nothing runs."""
    with a_lab(shared=False) as lab:
        yield lab
