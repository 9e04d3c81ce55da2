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
