from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.cli.lab import Lab, a_lab


@pytest.fixture(scope="module")
def lab() -> Generator[Lab]:
    """One home and one server for the tests of a module."""
    with a_lab(with_server=True) as lab:
        yield lab


@pytest.fixture
def bare_lab() -> Generator[Lab]:
    """A home in which nothing runs."""
    with a_lab(with_server=False) as lab:
        yield lab
