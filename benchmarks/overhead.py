"""What the engine itself costs: Functions that do nothing, documents with a long tail of page counts.

The floor makes the same number of bare Ray actor calls with the same payloads, and lets no step wait for another.
"""

from __future__ import annotations

from benchmarks import workloads
from benchmarks.harness import Job, Row, row, system_module

SYSTEMS = ("floor", "rayorch_flows", "rayorch", "raydata", "daft")
ARMS = ("1000", "4000")
SCALE = 1.0


def measure(job: Job) -> Row:
    documents = workloads.log_normal(int(int(job.arm) / job.scale))
    measured = system_module(job.system).trivial(documents, **job.options)
    return row(
        job,
        wall_s=measured.wall_s,
        items=documents.total,
        items_per_s=documents.total / measured.wall_s,
        calls=measured.calls,
        exact=workloads.same(measured.outputs, workloads.expected(documents)),
        **measured.extra,
    )


def conclude(rows: list[Row]) -> list[str]:
    """Against the peer and the floor at each size, and what a Grain costs at more documents."""
    rates = {(r["system"], r["arm"]): r["items_per_s"] for r in rows}
    lines: list[str] = []
    for arm in ARMS:
        ours, peer, floor = (rates.get((system, arm)) for system in ("rayorch_flows", "rayorch", "floor"))
        if ours and peer:
            lines.append(f"{arm} documents: {ours / peer:.1f} times the pages/s of rayorch")
        if ours and floor:
            lines.append(f"{arm} documents: {floor / ours:.2f} times the floor's time")
    costs = {r["arm"]: r["us_per_grain"] for r in rows if r["system"] == "rayorch_flows"}
    if len(costs) > 1:
        lines.append(f"a Grain costs {costs[ARMS[-1]] / costs[ARMS[0]]:.2f} times as much at {ARMS[-1]} documents")
    return lines
