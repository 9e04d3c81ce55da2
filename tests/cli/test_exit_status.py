"""What an ingest did, as the exit status of its command."""

from __future__ import annotations

import pytest

from rayorch_flows.cli import exit_status
from rayorch_flows.orchestration.reporting.summary import IngestSummary


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({}, 0),
        ({"failed": 5}, 0),
        ({"failed": 5, "max_failed": 5}, 0),
        ({"failed": 6, "max_failed": 5}, 1),
        ({"unaccounted": 1}, 3),
        ({"unaccounted": 1, "failed": 6, "max_failed": 5}, 3),
    ],
)
def test_exit_status_of_an_ingest(values: dict[str, int], code: int) -> None:
    assert exit_status.of_ingest(IngestSummary.model_validate({"table": "t", **values})) == code
