"""What each step of the scheduler brings: render, OCR and assemble sleep, and the engine is taken apart.

``streaming``: pages stay with their document. ``unordered``: batches across documents from a ready set without
order. ``fifo``: the queue is first in, first out. ``slow_start`` and ``tail``: the two steps that are ours. In the
``poisoned`` arms page 0 of the longest tenth fails, which is what slow start is for.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

from benchmarks import ledger, workloads
from benchmarks.harness import Job, Row, row
from benchmarks.systems import lineage
from rayorch_flows.lineage import facts, reservation
from rayorch_flows.lineage.ready import ReadyQueue

SYSTEMS = ("rayorch_flows",)
STEPS = ("streaming", "unordered", "fifo", "slow_start", "tail")
ARMS = tuple(f"{step}-{data}" for step in STEPS for data in ("clean", "poisoned"))
SCALE = 1.0

DOCUMENTS = 368
COSTS = lineage.Costs(batch_size=48, page_s=0.02, batch_s=0.2, assemble_s=0.06)


class UnorderedQueue(ReadyQueue):
    """A ready set without order: every Grain that leaves is drawn at random."""

    _draw = random.Random(7)

    def take(self, limit: int, *, ignore_windows: bool) -> list[int]:
        taken: list[int] = []
        while self._runs and len(taken) < limit:
            (parent,) = self._draw.choices(list(self._queued), list(self._queued.values()))
            self._pull(parent, 1, taken)
        self.size -= len(taken)
        return taken


def _always(*_: Any) -> bool:
    return True


def measure(job: Job) -> Row:
    step, _, data = job.arm.partition("-")
    documents = workloads.log_normal(int(DOCUMENTS / job.scale))
    if data == "poisoned":
        longest = sorted(range(len(documents.pages)), key=documents.pages.__getitem__)[-len(documents.pages) // 10 :]
        documents = workloads.Documents(documents.pages, frozenset(longest))
    if step == "unordered":
        facts.ReadyQueue = UnorderedQueue
    if step != "tail":
        reservation._more_to_come = _always  # pyright: ignore[reportPrivateUsage]
    measured = lineage.staged(
        "rayorch_flows",
        documents,
        COSTS,
        by_document=step == "streaming",
        options={"slow_start": step in ("slow_start", "tail"), **job.options},
    )
    entries = ledger.read(Path(os.environ[ledger.FOLDER]))
    outputs = [value if isinstance(value, list) else None for value in measured.outputs]
    return row(
        job,
        wall_s=measured.wall_s,
        ideal_s=documents.total * (COSTS.page_s + COSTS.batch_s / COSTS.batch_size) / COSTS.actors,
        items=documents.total,
        items_per_s=documents.total / measured.wall_s,
        suppressed=documents.doomed - sum(entry.doomed for entry in entries),
        calls=len(entries),
        exact=workloads.same(outputs, workloads.expected(documents)),
        fill=ledger.rows(entries, "page") / sum(entry.stage == "page" for entry in entries) / COSTS.batch_size,
    )


def conclude(rows: list[Row]) -> list[str]:
    """Every step relative to the full system."""
    lines: list[str] = []
    for data in ("clean", "poisoned"):
        walls = {r["arm"].partition("-")[0]: r["wall_s"] for r in rows if r["arm"].endswith(data)}
        if "tail" in walls:
            steps = ", ".join(f"{step} {walls[step] / walls['tail'] - 1:+.1%}" for step in STEPS if step in walls)
            lines.append(f"{data}, against the full system: {steps}")
    return lines
