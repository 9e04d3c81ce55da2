"""Which children a summary lists as failures."""

from __future__ import annotations

from typing import Any

from rayorch_flows.orchestration.reporting.failures import child_failures
from rayorch_flows.records.arrow import pa


def child(ordinal: int, outcome: str, cause_kind: str | None = None) -> dict[str, Any]:
    return {
        "domain": "page",
        "ordinals": [ordinal],
        "outcome": outcome,
        "cause_kind": cause_kind,
        "cause": cause_kind and f"page {ordinal} is lost",
    }


def row(uri: str, outcome: str, *children: dict[str, Any]) -> dict[str, Any]:
    return {"uri": uri, "outcome": outcome, "children": list(children)}


def test_a_hole_in_a_present_document_is_listed_wherever_on_its_way_the_page_was_lost() -> None:
    rows = pa.Table.from_pylist(
        [
            row("hole.pdf", "present", child(0, "present"), child(1, "suppressed", "corrupt"), child(2, "dropped")),
            row("join.pdf", "present", child(0, "failed", "timeout")),
            row("whole.pdf", "present", child(0, "present")),
        ]
    )
    found = [(line.uri, line.ordinals, line.cause_kind) for line in child_failures(rows)]
    assert found == [("hole.pdf", (1,), "corrupt"), ("join.pdf", (0,), "timeout")]


def test_siblings_that_went_down_with_their_document_are_not_failures_of_their_own() -> None:
    rows = pa.Table.from_pylist(
        [row("lost.pdf", "failed", child(0, "failed", "corrupt"), child(1, "suppressed", "corrupt"))]
    )
    assert [line.ordinals for line in child_failures(rows)] == [(0,)]
