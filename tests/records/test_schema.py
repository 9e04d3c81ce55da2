from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from rayorch_flows.errors import TableError
from rayorch_flows.lineage.protocol import ChildOutcome
from rayorch_flows.program.outcomes import Cause, CauseKind, ItemOutcome
from rayorch_flows.records.schema import canonical, failed_rows, outcome_rows, table_schema
from tests.records.helpers import RECORD, Outcome, item, present

ITEMS = [item("a"), item("b"), item("c")]


def rows(*outcomes: Outcome) -> list[dict[str, Any]]:
    return outcome_rows(outcomes, ITEMS, RECORD, 3).to_pylist()


def test_the_table_has_the_columns_of_the_design_in_order() -> None:
    assert table_schema(RECORD).names == [
        *("uri", "size", "modified_at", "etag", "content_hash", "outcome", "cause_kind", "cause", "retryable"),
        *("n_children", "children", "text", "pages"),
        *("microbatch_id", "flow_run_id", "semantic_fingerprint", "attempt", "committed_at"),
    ]
    assert table_schema(RECORD).field("children").type == pa.list_(
        pa.struct(
            [
                ("domain", pa.string()),
                ("ordinals", pa.list_(pa.int32())),
                ("outcome", pa.string()),
                ("cause_kind", pa.string()),
                ("cause", pa.string()),
            ]
        )
    )


def test_a_present_item_becomes_its_record() -> None:
    children = (
        ChildOutcome("page", (0,), ItemOutcome.PRESENT),
        ChildOutcome("page", (1,), ItemOutcome.SUPPRESSED, Cause(CauseKind.TIMEOUT, "slow", ordinals=(1, 2))),
        ChildOutcome("page[]", (1, 2), ItemOutcome.FAILED, Cause(CauseKind.TIMEOUT, "slow")),
        ChildOutcome("page", (2,), ItemOutcome.DROPPED),
    )
    [row] = rows(present(1, "hello", children))
    assert (row["uri"], row["content_hash"]) == (ITEMS[1].uri, ITEMS[1].content_hash)
    assert (row["outcome"], row["cause_kind"], row["cause"], row["retryable"]) == ("present", None, None, False)
    assert (row["text"], row["pages"], row["attempt"], row["source_index"]) == ("hello", 1, 3, 1)
    assert row["n_children"] == 4
    assert [(c["ordinals"], c["outcome"], c["cause_kind"], c["cause"]) for c in row["children"]] == [
        ([0], "present", None, None),
        ([1], "suppressed", "timeout", "slow"),
        ([1, 2], "failed", "timeout", "slow"),
        ([2], "dropped", None, None),
    ]


@pytest.mark.parametrize("outcome", [ItemOutcome.FAILED, ItemOutcome.SUPPRESSED])
def test_a_failed_or_suppressed_item_is_a_failed_row_with_the_root_cause(outcome: ItemOutcome) -> None:
    cause = Cause(CauseKind.WORKER_CRASH, "killed", call="ocr", ordinals=(3,), retryable=True)
    [row] = rows(Outcome(0, outcome, cause=cause))
    assert (row["outcome"], row["cause_kind"], row["cause"], row["retryable"]) == (
        "failed",
        "worker_crash",
        "killed",
        True,
    )
    assert row["text"] is None


def test_a_dropped_item_is_a_dropped_row() -> None:
    [row] = rows(Outcome(0, ItemOutcome.DROPPED))
    assert (row["outcome"], row["cause_kind"], row["retryable"]) == ("dropped", None, False)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("not a dict", "must be a dict, not str"),
        ({"text": "x", "colour": 1}, "fields that its schema lacks: colour"),
        ({"text": "x", "pages": "many"}, "does not fit its schema"),
        ({"text": ["x"]}, "does not fit its schema"),
        ({"text": "\udcff"}, "does not fit its schema"),
        ({"pages": 2**70}, "does not fit its schema"),
    ],
)
def test_a_value_that_does_not_fit_fails_its_own_row_only(value: Any, message: str) -> None:
    good, bad, also = rows(present(0, "a"), Outcome(1, value=value), present(2, "c"))
    assert (good["outcome"], also["outcome"]) == ("present", "present")
    assert (bad["outcome"], bad["cause_kind"], bad["text"]) == ("failed", "contract", None)
    assert message in bad["cause"]


def test_missing_record_fields_are_null_and_messages_may_hold_anything() -> None:
    [empty, odd] = rows(
        Outcome(0, value={}), Outcome(1, ItemOutcome.FAILED, cause=Cause(CauseKind.CORRUPT, "bad\udcff\x00"))
    )
    assert (empty["outcome"], empty["text"], empty["pages"]) == ("present", None, None)
    assert odd["cause"] == "bad\\udcff\x00"


def test_sources_that_never_ended_get_failed_rows() -> None:
    table = failed_rows(ITEMS, [2, 0], RECORD, 5, Cause(CauseKind.CANCELLED, "gave up", retryable=True))
    assert [(row["uri"], row["cause"], row["retryable"], row["attempt"]) for row in table.to_pylist()] == [
        ("/data/c", "gave up", True, 5),
        ("/data/a", "gave up", True, 5),
    ]


def test_record_schemas_are_stored_as_delta_can() -> None:
    stored = canonical(pa.schema([("a", pa.large_string()), pa.field("t", pa.timestamp("ns", "UTC"), nullable=False)]))
    assert stored.field("a").type == pa.string()
    assert stored.field("t").type == pa.timestamp("us", "UTC")
    assert stored.field("t").nullable


@pytest.mark.parametrize("names", [("uri",), ("a", "a"), ("committed_at",), ("source_index",)])
def test_reserved_and_repeated_names_are_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(TableError, match="reserved or repeated"):
        canonical(pa.schema([(name, pa.string()) for name in names]))


def test_types_that_delta_lacks_are_refused() -> None:
    with pytest.raises(TableError, match="cannot be stored"):
        canonical(pa.schema([("d", pa.duration("s"))]))
