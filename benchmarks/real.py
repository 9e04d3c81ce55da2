"""Real work: the PDF flow on real files, and a small vision-language model, whose batches pay on a CPU too.

``pdf`` runs over the shared corpus where there is one, else over the sample; ``--scale 10`` takes every tenth file. The
largest file comes first, for every system, as whoever wants a short tail sorts them. ``vlm`` needs the extra of that
name. All systems call the same stage code with the same batch limits.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import ledger
from benchmarks.harness import Job, Row, row, system_module, without_start
from rayorch_flows.stages.samples.pdf_corpus import make_sample

SYSTEMS = ("rayorch_flows", "raydata", "floor")
ARMS = ("pdf", "vlm")
SCALE = 1.0

CORPUS = "RAYORCH_FLOWS_CORPUS"
ROOT = Path(__file__).resolve().parent.parent


def corpus(scale: float) -> list[str]:
    """Files to ingest, the largest first: every ``scale``-th of the corpus by size, for the same tail."""
    places = [Path(os.environ[CORPUS])] if CORPUS in os.environ else [ROOT.parent / "shared" / "corpus" / "pdf_ok"]
    folder = next((place for place in places if place.is_dir()), None)
    if folder is None:
        folder = make_sample(Path(tempfile.mkdtemp(prefix="bench-sample-", dir="/tmp")))
        scale = 1
    files = sorted(folder.glob("*.pdf"), key=lambda path: (path.stat().st_size, path.name))
    return [str(path) for path in reversed(files[int(scale) // 2 :: int(scale)])]


def measure(job: Job) -> Row:
    return _pdf(job) if job.arm == "pdf" else _vlm(job)


def _pdf(job: Job) -> Row:
    uris = corpus(job.scale)
    measured = system_module(job.system).pdf(uris, actors=len(os.sched_getaffinity(0)), **job.options)
    records: list[dict[str, Any] | None] = measured.outputs
    entries = ledger.read(Path(os.environ[ledger.FOLDER]))
    wall_s = without_start(measured, entries)[1] if entries else measured.wall_s
    pages = sum(record["n_pages"] for record in records if record)
    digest = hashlib.sha256(repr([record and record["markdown"] for record in records]).encode()).hexdigest()
    return row(
        job,
        wall_s=wall_s,
        items=pages,
        items_per_s=pages / wall_s,
        calls=measured.calls,
        exact=len(records) == len(uris) and pages > 0,
        files=len(uris),
        failed_files=sum(record is None for record in records),
        ocr_pages=sum(record["n_ocr_pages"] for record in records if record),
        digest=digest[:12],
    )


def _vlm(job: Job) -> Row:
    from benchmarks import vlm

    documents = vlm.documents(job.scale)
    measured = system_module(job.system).vlm(documents, actors=len(os.sched_getaffinity(0)), **job.options)
    entries = ledger.read(Path(os.environ[ledger.FOLDER]))
    _, wall_s = without_start(measured, entries)
    return row(
        job,
        wall_s=wall_s,
        items=documents.total,
        items_per_s=documents.total / wall_s,
        calls=len(entries),
        exact=[len(tokens or []) for tokens in measured.outputs] == list(documents.pages),
        mean_batch=ledger.rows(entries, "page") / len(entries),
        digest=hashlib.sha256(repr(measured.outputs).encode()).hexdigest()[:12],
    )


def conclude(rows: list[Row]) -> list[str]:
    """Every system has to have said the same about every page."""
    lines: list[str] = []
    for arm in dict.fromkeys(r["arm"] for r in rows):
        digests = {r["digest"] for r in rows if r["arm"] == arm and "digest" in r}
        lines.append(f"{arm}: {'all outputs are equal' if len(digests) == 1 else 'OUTPUTS DIFFER: ' + str(digests)}")
    return lines
