"""Strong scaling: a fixed input on more and more sleeping actors."""

from __future__ import annotations

import os
from pathlib import Path

from benchmarks import ledger, workloads
from benchmarks.harness import Job, Row, row, system_module

SYSTEMS = ("rayorch_flows", "rayorch", "floor")
ARMS = ("4", "8", "16", "32", "64")
SCALE = 1.0

DOCUMENTS = 700
BATCH = 48
PAGE_S = 0.05


def measure(job: Job) -> Row:
    actors = int(job.arm)
    documents = workloads.log_normal(int(DOCUMENTS / job.scale))
    measured = system_module(job.system).sleeping(
        documents, actors=actors, batch_size=BATCH, page_s=PAGE_S, **job.options
    )
    entries = ledger.read(Path(os.environ[ledger.FOLDER]))
    return row(
        job,
        wall_s=measured.wall_s,
        ideal_s=documents.total * PAGE_S / actors,
        items=documents.total,
        items_per_s=documents.total / measured.wall_s,
        calls=len(entries),
        exact=workloads.same(measured.outputs, workloads.expected(documents)),
        busy=ledger.busy(entries, "page") / actors / measured.wall_s,
    )


def conclude(rows: list[Row]) -> list[str]:
    """Speed-up of each system from the fewest actors to the most."""
    lines: list[str] = []
    for system in dict.fromkeys(r["system"] for r in rows):
        walls = {int(r["arm"]): r["wall_s"] for r in rows if r["system"] == system and r["wall_s"]}
        if len(walls) > 1:
            low, high = min(walls), max(walls)
            lines.append(f"{system}: {walls[low] / walls[high]:.2f} times faster from {low} to {high} actors")
    return lines
