from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.browser.chrome import PROGRAM, Page, chromium
from tests.cli.lab import Lab, a_lab


@pytest.fixture(scope="module")
def lab() -> Generator[Lab]:
    """One home, one server and one cluster for the tests of a module."""
    if PROGRAM is None:
        pytest.skip("no Chromium on this machine (apt-get install chromium)")
    with a_lab(shared=True) as lab:
        yield lab


@pytest.fixture
def page() -> Generator[Page]:
    with chromium() as page:
        yield page
