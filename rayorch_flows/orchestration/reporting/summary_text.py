"""The summary of an ingest as text for a terminal."""

from __future__ import annotations

import shlex

from rayorch_flows.command import typed
from rayorch_flows.orchestration.reporting import progress
from rayorch_flows.orchestration.reporting.summary import CallSummary, IngestSummary


def summary_text(summary: IngestSummary, child_noun: str) -> str:
    """What a person wants to know when an ingest has ended, the table and the way to its failures last."""
    if summary.sources == summary.unchanged:
        lines = [f"Nothing to do: all {summary.sources} sources are in the table already, no Function was run."]
    else:
        lines = [
            f"Ingested {summary.done} of {summary.sources - summary.unchanged} sources in "
            f"{progress.duration(summary.elapsed_s)}: {summary.present} present, {summary.failed} failed, "
            f"{summary.dropped} dropped" + (f" ({summary.unchanged} unchanged)" if summary.unchanged else "")
        ]
        rate = summary.children / summary.elapsed_s if summary.elapsed_s else 0.0
        lines += _pair(child_noun, f"{summary.children}, {rate:.1f}/s" + _failed(summary.children_failed))
        if summary.causes:
            lines += _pair(
                "causes", ", ".join(f"{kind or 'unknown'} {count}" for kind, count in summary.causes.items())
            )
        lines += ["", *_calls(summary.calls), ""]
    if summary.unaccounted:
        lines += _pair("left", f"{summary.unaccounted} sources are not in the table: run the same command again")
        for error in summary.errors:
            lines += _pair("why", error)
    if summary.over_budget:
        lines += _pair("budget", f"exceeded: {summary.failed} failed, {summary.max_failed} may")
    lines += _pair("table", summary.table)
    if summary.failed or summary.children_failed:
        lines += _pair("failures", typed(f"failures {shlex.quote(summary.table)}"))
    return "\n".join([*lines, *_pair("history", typed("ui"))])


def _pair(name: str, value: str) -> list[str]:
    return [f"  {name:<9} {value}"]


def _failed(count: int) -> str:
    return f", {count} failed" if count else ""


def _calls(calls: list[CallSummary]) -> list[str]:
    if not calls:
        return []
    width = max(4, *(len(call.call) for call in calls))
    lines = [f"  {'Call':<{width}}  {'Grains':>8}  {'batches':>8}  {'mean batch':>10}  {'fill':>5}  {'busy':>9}"]
    lines.extend(
        f"  {call.call:<{width}}  {call.grains:>8}  {call.batches:>8}  {call.mean_batch:>10.1f}  {call.fill:>5.0%}"
        f"  {call.busy_s:>7.1f} s"
        for call in calls
    )
    return lines
