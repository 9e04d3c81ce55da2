from __future__ import annotations

import base64
import re
from xml.etree import ElementTree

from rayorch_flows.orchestration.reporting import charts
from rayorch_flows.orchestration.reporting.report import child_name, ingest_report, microbatch_report
from rayorch_flows.orchestration.reporting.summary import (
    CallSummary,
    FailureLine,
    IngestSummary,
    MicrobatchSummary,
    merge_calls,
)

CALLS = merge_calls(
    [
        [
            CallSummary(call="render", domain="page", grains=20, batches=5, batch_limit=8, busy_s=2.0,
                        sizes={8: 1, 3: 4}, first_start_s=0.0, last_end_s=4.0),
            CallSummary(call="ocr <b>&", domain="page", grains=64, batches=2, batch_limit=48, busy_s=9.0,
                        sizes={48: 1, 16: 1}, first_start_s=1.0, last_end_s=5.0),
            CallSummary(call="unused", domain="page"),
        ]
    ]
)  # fmt: skip


def svg(uri: str) -> ElementTree.Element:
    assert uri.startswith("data:image/svg+xml;base64,")
    return ElementTree.fromstring(base64.b64decode(uri.partition(",")[2]))


def rectangles(root: ElementTree.Element) -> list[dict[str, str]]:
    return [each.attrib for each in root.iter("{http://www.w3.org/2000/svg}rect")][1:]


def test_the_timeline_is_well_formed_and_to_scale() -> None:
    bars = rectangles(svg(charts.timeline(CALLS, 5.0)))
    assert len(bars) == 4, "two bars for each Call that ran"
    spans = [float(bar["width"]) for bar in bars[::2]]
    assert spans[0] == spans[1], "both ran for four seconds"
    busy = [float(bar["width"]) / span for bar, span in zip(bars[1::2], spans, strict=True)]
    assert [round(each, 2) for each in busy] == [0.5, 1.0]


def test_the_histogram_has_a_bar_for_every_bin() -> None:
    bars = rectangles(svg(charts.histogram(CALLS)))
    assert len(bars) == 8 + 16
    heights = [float(bar["height"]) for bar in bars[:8]]
    assert heights[2] == max(heights), "four batches of three"
    assert heights[7] == heights[2] / 4
    assert heights[0] == 0.0


def test_pictures_of_nothing_are_well_formed() -> None:
    svg(charts.timeline([], 0.0))
    svg(charts.histogram([]))


def test_the_report_of_a_microbatch() -> None:
    part = MicrobatchSummary(
        microbatch="abcdef0123456789", committed=True, sources=4, present=3, failed=1, children=30, staged=1,
        attempts=2, elapsed_s=6.0, engine_s=5.0, causes={"encrypted": 1}, calls=CALLS,
        failures=[
            FailureLine(uri="/data/a|b.pdf", cause_kind="encrypted", cause="no\n<password>"),
            FailureLine(uri="/data/c.pdf", cause_kind="timeout", cause="slow", domain="page", ordinals=(3,)),
        ],
    )  # fmt: skip
    text = microbatch_report(part, "/data/table", "http://ray:8265")
    assert "# Microbatch abcdef012345: committed" in text
    assert "attempt 2, 1 taken over from earlier attempts" in text
    assert "[Ray dashboard](http://ray:8265)" in text
    assert "| a\\|b.pdf |  | encrypted | no &lt;password> |" in text
    assert "| c.pdf | page 3 | timeout | slow |" in text
    assert "30 children, 0 failed" in text
    assert re.search(r"\| render \| page \| 20 \| 0 \| 0 \| 0 \| 0 \| 5 \| 4\.0 \| 50% \|", text)
    assert text.count("](data:image/svg+xml;base64,") == 2
    for line in text.splitlines():
        if line.startswith("| ---"):
            columns = line.count("|")
        elif line.startswith("| ") and "columns" in locals():
            assert line.replace("\\|", "").count("|") in (columns, line.count("|"))


def test_the_report_of_a_failed_microbatch_says_why() -> None:
    part = MicrobatchSummary(microbatch="m", sources=4, error="no cluster\n```\nx")
    text = microbatch_report(part, "t")
    assert "not committed" in text
    assert "no cluster" in text
    assert text.count("```") == 2, "the message cannot end its own block"


def test_the_roll_up_shows_failed_microbatches_first_and_links_them() -> None:
    summary = IngestSummary(table="t", sources=5, present=4, unaccounted=1, max_failed=0)
    parts = [
        MicrobatchSummary(microbatch="good", flow_run_id="1", committed=True, sources=4, present=4),
        MicrobatchSummary(microbatch="bad", flow_run_id="2", sources=1, error="no cluster"),
    ]
    text = ingest_report(summary, parts, "http://ui")
    assert text.index("[bad](http://ui/runs/flow-run/2)") < text.index("[good](http://ui/runs/flow-run/1)")


def test_a_child_is_named_by_its_path() -> None:
    assert child_name(FailureLine(uri="u", cause_kind="", cause="", domain="region", ordinals=(3, 0))) == "region 3.0"
    assert child_name(FailureLine(uri="u", cause_kind="", cause="")) == ""
