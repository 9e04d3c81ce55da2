from __future__ import annotations

from rayorch_flows.orchestration.reporting.summary import (
    CallSummary,
    FailureLine,
    IngestSummary,
    MicrobatchSummary,
    merge_calls,
)
from rayorch_flows.orchestration.reporting.summary_text import summary_text


def call(name: str = "ocr", **values: object) -> CallSummary:
    return CallSummary.model_validate({"call": name, "batch_limit": 8, **values})


def part(**values: object) -> MicrobatchSummary:
    return MicrobatchSummary.model_validate({"microbatch": "m", "committed": True, **values})


def test_every_source_is_in_exactly_one_place() -> None:
    summary = IngestSummary(table="t", sources=12, unchanged=4)
    summary.add(
        [
            part(sources=5, present=3, failed=1, dropped=1, children=9, causes={"encrypted": 1}),
            part(sources=3, committed=False, error="no cluster"),
        ]
    )
    places = (summary.unchanged, summary.present, summary.failed, summary.dropped, summary.unaccounted)
    assert places == (4, 3, 1, 1, 3)
    assert sum(places) == summary.sources
    assert (summary.microbatches, summary.microbatches_failed) == (2, 1)
    assert summary.errors == ["no cluster"]


def test_calls_of_microbatches_add_up() -> None:
    (merged,) = merge_calls(
        [
            [call(grains=20, batches=3, sizes={8: 2, 4: 1}, busy_s=3.0, p50_s=1.0, p95_s=2.0, last_end_s=5.0)],
            [call(grains=8, batches=1, sizes={8: 1}, busy_s=1.0, p50_s=3.0, p95_s=1.0, retries=2, first_start_s=1.0)],
        ]
    )
    assert (merged.grains, merged.batches, merged.retries) == (28, 4, 2)
    assert merged.sizes == {4: 1, 8: 3}
    assert merged.mean_batch == 7.0
    assert merged.fill == 0.875
    assert (merged.p50_s, merged.p95_s) == (1.5, 2.0)
    assert (merged.first_start_s, merged.last_end_s) == (0.0, 5.0)


def test_no_batches_no_division() -> None:
    (merged,) = merge_calls([[call()], [call()]])
    assert (merged.mean_batch, merged.fill) == (0.0, 0.0)


def test_the_roll_up_keeps_a_bounded_number_of_failures() -> None:
    failures = [FailureLine(uri=f"u{n}", cause_kind="corrupt", cause="c") for n in range(40)]
    summary = IngestSummary(table="t")
    summary.add([part(failures=failures), part(failures=failures)])
    assert len(summary.failures) == 50


def test_text_of_a_run() -> None:
    summary = IngestSummary(
        table="/data/t", sources=10, unchanged=2, present=6, failed=2, children=80, elapsed_s=8.0,
        causes={"encrypted": 2}, calls=merge_calls([[call(grains=80, batches=10, sizes={8: 10})]]),
    )  # fmt: skip
    text = summary_text(summary, "pages")
    assert "Ingested 8 of 8 sources in 8 s: 6 present, 2 failed, 0 dropped (2 unchanged)" in text
    assert "80, 10.0/s" in text
    assert "encrypted 2" in text
    assert "8.0   100%" in text
    assert "rayorch-flows failures /data/t" in text


def test_text_of_a_run_that_had_nothing_to_do() -> None:
    text = summary_text(IngestSummary(table="t", sources=3, unchanged=3), "pages")
    assert "all 3 sources are in the table already, no Function was run" in text
    assert "failures" not in text


def test_text_of_a_run_that_gave_up_names_the_way_on() -> None:
    text = summary_text(IngestSummary(table="t", sources=3, unaccounted=3, errors=["no cluster"]), "pages")
    assert "3 sources are not in the table: run the same command again" in text
    assert "no cluster" in text
