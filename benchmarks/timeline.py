"""When each stage works: render, OCR, assemble, write, in us, Ray Data and Daft, on the same documents.

A system that brings pages back to their documents with a shuffle can assemble and write only when OCR is over.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from benchmarks import ledger, workloads
from benchmarks.harness import Job, Row, row, system_module
from benchmarks.systems.lineage import Costs

SYSTEMS = ("rayorch_flows", "raydata", "daft")
ARMS = ("clean",)
SCALE = 1.0

DOCUMENTS = 200
STAGES = ("render", "page", "assemble", "write")
COSTS = Costs()


def measure(job: Job) -> Row:
    documents = workloads.log_normal(int(DOCUMENTS / job.scale))
    with tempfile.TemporaryDirectory(prefix="bench-out-", dir="/tmp") as folder:
        measured = system_module(job.system).staged(documents, COSTS, folder=folder, **job.options)
        written = len(list(Path(folder).iterdir()))
    entries = ledger.read(Path(os.environ[ledger.FOLDER]))
    zero = entries[0].start
    end = max(entry.end for entry in entries)
    wall_s = end - zero
    windows = {stage: [at - zero for at in ledger.window(entries, stage)] for stage in STAGES}
    first_s = min(entry.end for entry in entries if entry.stage == "write") - zero
    return row(
        job,
        wall_s=wall_s,
        ideal_s=documents.total * COSTS.page_s / COSTS.actors,
        items=documents.total,
        items_per_s=documents.total / wall_s,
        calls=len(entries),
        exact=workloads.same(measured.outputs, workloads.expected(documents)) and written == len(documents.pages),
        first_record_share=first_s / wall_s,
        tail_share=(wall_s - windows["page"][1]) / wall_s,
        windows={stage: [round(at, 3) for at in window] for stage, window in windows.items()},
    )
