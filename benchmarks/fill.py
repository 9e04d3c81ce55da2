"""Small microbatches, three at a time, on many actors whose model is dear per batch and cheap per page.

Who never mixes microbatches in a batch sends short ones at every microbatch's end. The ideal is a simulated optimum.
"""

from __future__ import annotations

import os
from pathlib import Path

from benchmarks import ledger, optimum, workloads
from benchmarks.harness import Job, Row, row, system_module
from benchmarks.virtual import Simulation, Site

SYSTEMS = ("rayorch_flows", "rayorch")
ARMS = ("clean",)
SCALE = 1.0

MICROBATCHES = 60
DOCUMENTS = 24
ACTIVE = 3
ACTORS = 32
BATCH = 64
BATCH_S = 0.4
PAGE_S = 0.005


def measure(job: Job) -> Row:
    documents = workloads.log_normal(DOCUMENTS * int(MICROBATCHES / job.scale))
    counts = [sum(documents.pages[i : i + DOCUMENTS]) for i in range(0, len(documents.pages), DOCUMENTS)]
    ideal_s = optimum.best_wall_s(
        counts, active=ACTIVE, actors=ACTORS, batch=BATCH, cost=lambda pages: BATCH_S + PAGE_S * pages
    )
    site = Site(
        ACTORS,
        BATCH,
        lambda pages: BATCH_S + PAGE_S * pages,
        DOCUMENTS,
        ACTIVE,
        openers=1,
        open_batch=DOCUMENTS,
        open_s=0.0,
    )
    measured = system_module(job.system).sleeping(
        documents,
        actors=ACTORS,
        batch_size=BATCH,
        page_s=PAGE_S,
        batch_s=BATCH_S,
        input_batch_size=DOCUMENTS,
        active=ACTIVE,
        split_batch=DOCUMENTS,
        **job.options,
    )
    entries = ledger.read(Path(os.environ[ledger.FOLDER]))
    return row(
        job,
        wall_s=measured.wall_s,
        ideal_s=ideal_s,
        items=documents.total,
        items_per_s=documents.total / measured.wall_s,
        calls=len(entries),
        exact=workloads.same(measured.outputs, workloads.expected(documents)),
        fill=ledger.rows(entries, "page") / len(entries) / BATCH,
        busy=ledger.busy(entries, "page") / ACTORS / measured.wall_s,
        machine_s=Simulation(site, documents).run() if job.system == "rayorch_flows" else None,
        over_ideal=measured.wall_s / ideal_s - 1,
    )
