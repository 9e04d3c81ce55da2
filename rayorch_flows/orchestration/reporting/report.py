"""The Markdown reports: one per microbatch, one roll-up on the parent flow run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rayorch_flows.orchestration.reporting import charts
from rayorch_flows.orchestration.reporting.summary import CallSummary, FailureLine, IngestSummary, MicrobatchSummary

SHOWN_FAILURES: Final = 30


def microbatch_report(part: MicrobatchSummary, table: str, dashboard_url: str = "") -> str:
    """What one microbatch did, for somebody who opens its flow run."""
    head = "not committed" if not part.committed else "stopped early" if part.error else "committed"
    lines = [
        f"# Microbatch {part.microbatch[:12]}: {head}",
        "",
        f"{_count(part.sources, 'source')}: {part.present} present, {part.failed} failed, {part.dropped} dropped. "
        f"{part.children} {part.child_noun}, {part.children_failed} failed. "
        f"{part.elapsed_s:.1f} s ({part.engine_s:.1f} s in the engine), attempt {part.attempts}"
        + (f", {part.staged} taken over from earlier attempts." if part.staged else "."),
        "",
        f"Table: `{table}`" + (f" · [Ray dashboard]({dashboard_url})" if dashboard_url else ""),
        "",
    ]
    if part.error:
        lines += ["## Why it stopped", "", "```text", part.error.replace("```", "'''"), "```", ""]
    lines += _calls(part.calls, part.engine_s or part.elapsed_s, pictures=True)
    lines += _failures(part.failures, part.causes, table)
    return "\n".join(lines)


def ingest_report(summary: IngestSummary, parts: Sequence[MicrobatchSummary], ui_url: str = "") -> str:
    """The roll-up over all microbatches."""
    lines = [
        f"# Ingest into {_cell(summary.table)}",
        "",
        "| sources | unchanged | present | failed | dropped | not accounted for | children | seconds |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        f"| {summary.sources} | {summary.unchanged} | {summary.present} | {summary.failed} | {summary.dropped} "
        f"| {summary.unaccounted} | {summary.children} | {summary.elapsed_s:.1f} |",
        "",
    ]
    if summary.over_budget:
        lines += [f"**The error budget is exceeded**: {summary.failed} failed, {summary.max_failed} allowed.", ""]
    if not parts:
        lines += ["Every source is in the table already: nothing was run.", ""]
        return "\n".join(lines)
    lines += _calls(summary.calls, 0.0, pictures=False)
    lines += _failures(summary.failures, summary.causes, summary.table)
    lines += [
        "## Microbatches",
        "",
        "| microbatch | sources | present | failed | children | attempt | seconds | |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for part in sorted(parts, key=lambda each: not each.error):
        name = part.microbatch[:12]
        if ui_url and part.flow_run_id:
            name = f"[{name}]({ui_url}/runs/flow-run/{part.flow_run_id})"
        lines.append(
            f"| {name} | {part.sources} | {part.present} | {part.failed} | {part.children} | {part.attempts} "
            f"| {part.elapsed_s:.1f} | {_cell(part.error, 120) or 'committed'} |"
        )
    return "\n".join([*lines, ""])


def _calls(calls: Sequence[CallSummary], elapsed_s: float, *, pictures: bool) -> list[str]:
    if not calls:
        return []
    lines = [
        "## Calls",
        "",
        "| Call | Domain | Grains | failed | suppressed | dropped | retries | batches | mean batch | fill | busy s "
        "| p50 s | p95 s |",
        "| --- | --- |" + " ---: |" * 11,
    ]
    lines += [
        f"| {_cell(call.call)} | {_cell(call.domain)} | {call.grains} | {call.failed} | {call.suppressed} "
        f"| {call.dropped} | {call.retries} | {call.batches} | {call.mean_batch:.1f} | {call.fill:.0%} "
        f"| {call.busy_s:.1f} | {call.p50_s:.3f} | {call.p95_s:.3f} |"
        for call in calls
    ]
    lines.append("")
    if pictures and any(call.batches for call in calls):
        lines += [
            "## Stage timeline",
            "",
            f"![When each Call was at work]({charts.timeline(calls, elapsed_s)})",
            "",
            "## Batch sizes",
            "",
            f"![How large the dispatch batches were]({charts.histogram(calls)})",
            "",
        ]
    return lines


def _failures(failures: Sequence[FailureLine], causes: dict[str, int], table: str) -> list[str]:
    if not failures and not causes:
        return []
    lines = ["## Failures", "", ", ".join(f"{count} {kind}" for kind, count in causes.items()), ""]
    lines += ["| source | child | cause | message |", "| --- | --- | --- | --- |"]
    for failure in failures[:SHOWN_FAILURES]:
        lines.append(
            f"| {_cell(_short(failure.uri))} | {child_name(failure)} | {_cell(failure.cause_kind)} "
            f"| {_cell(failure.cause, 200)} |"
        )
    if len(failures) > SHOWN_FAILURES:
        lines += ["", f"{len(failures) - SHOWN_FAILURES} more."]
    return [*lines, "", f"All of them: `rayorch-flows failures {table}`", ""]


def child_name(failure: FailureLine) -> str:
    """A child as a person names it, by its Domain and zero-based ordinals; nothing for the source item itself."""
    if not failure.ordinals:
        return ""
    return f"{failure.domain} {'.'.join(str(ordinal) for ordinal in failure.ordinals)}".strip()


def _short(uri: str) -> str:
    return uri.rstrip("/").rpartition("/")[2] or uri


def _cell(text: str, limit: int = 80) -> str:
    flat = " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"
