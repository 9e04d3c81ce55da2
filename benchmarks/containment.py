"""The paper's failure trace: page 0 of each of the largest documents is poisoned, and these hold half of all pages.

What counts is how many of the doomed siblings never enter the Function, and the wall time that this saves.
"""

from __future__ import annotations

import os
from pathlib import Path

from benchmarks import ledger, workloads
from benchmarks.harness import Job, Row, row, system_module, without_start

SYSTEMS = ("floor", "rayorch_flows", "rayorch", "raydata", "daft")
ARMS = ("clean", "poisoned")
SCALE = 10.0

ACTORS = 4
BATCH = 48
PAGE_S = 0.05


def measure(job: Job) -> Row:
    trace = workloads.failure_trace(job.scale)
    documents = trace if job.arm == "poisoned" else workloads.Documents(trace.pages)
    measured = system_module(job.system).sleeping(
        documents, actors=ACTORS, batch_size=BATCH, page_s=PAGE_S, **job.options
    )
    entries = ledger.read(Path(os.environ[ledger.FOLDER]))
    seen = sum(entry.doomed for entry in entries)
    doomed = documents.doomed
    started_s, wall_s = without_start(measured, entries)
    return row(
        job,
        wall_s=wall_s,
        ideal_s=documents.total * PAGE_S / ACTORS,
        items=documents.total,
        items_per_s=documents.total / wall_s,
        suppressed=doomed - seen,
        suppressed_share=(doomed - seen) / doomed if doomed else 0.0,
        calls=len(entries),
        exact=workloads.same(measured.outputs, workloads.expected(documents)),
        started_s=started_s,
        busy=ledger.busy(entries, "page") / ACTORS / wall_s,
        mean_batch=ledger.rows(entries, "page") / len(entries),
        **measured.extra,
    )


def conclude(rows: list[Row]) -> list[str]:
    """How much of a clean run's time each system saves when documents are poisoned."""
    lines: list[str] = []
    for system in dict.fromkeys(r["system"] for r in rows):
        arms = {r["arm"]: r for r in rows if r["system"] == system}
        if set(arms) >= set(ARMS):
            clean, poisoned = arms["clean"], arms["poisoned"]
            lines.append(
                f"{system}: clean {clean['wall_s'] / clean['ideal_s'] - 1:+.1%} over ideal; poisoned "
                f"{poisoned['suppressed_share']:.1%} of the doomed pages never computed, "
                f"{1 - poisoned['wall_s'] / clean['wall_s']:.1%} of the time saved"
            )
    return lines
