"""A document of 4,000 pages rendered at 200 dpi under a byte budget, and a thousand small documents behind it.

The model is slower than the renderers, so that without a budget every page would lie in the object store at once.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import ray

from benchmarks.harness import Job, Row, row
from rayorch_flows import Executor, F, Pipeline, Port, RayModule
from rayorch_flows.stages.pdf import OpenPdf, PageImage, Render
from rayorch_flows.stages.samples.pdf_writer import PdfWriter, text_content

SYSTEMS = ("rayorch_flows",)
ARMS = ("budget",)
SCALE = 1.0

PAGES = 4_000
SMALL = 1_000
BUDGET = 128 * 1024 * 1024
STORE = 1024 * 1024 * 1024
LOOK_S = 0.06
_OWN_RAY: dict[str, Any] = {"num_cpus": 4, "object_store_memory": STORE, "_temp_dir": os.environ.get("BENCHMARKS_RAY")}


class Look:
    """Reads every pixel, and is slow."""

    def run(self, images: list[PageImage]) -> list[int]:
        time.sleep(LOOK_S * len(images))
        return [int((image.pixels < 128).sum() > 0) for image in images]


class Documents(Pipeline):
    def __init__(self) -> None:
        super().__init__()
        self.open = RayModule(OpenPdf).returns(2).ray_options(batch_size=8, num_cpus=0)
        self.render = RayModule(Render).ray_options(
            replicas=2, batch_size=8, batching="parent_bound", max_ready_bytes=BUDGET, num_cpus=0
        )
        self.look = RayModule(Look).ray_options(replicas=2, batch_size=8, num_cpus=0)

    def forward(self, uris: Port) -> Port:
        refs, _ = self.open(uris)
        return F.reduce(self.look(self.render(F.expand(refs, name="page"))))


class StoreWatch(threading.Thread):
    """Looks at the object store a few times a second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = 0
        self.spilled = 0
        self.over = threading.Event()

    def run(self) -> None:
        from ray._private import internal_api

        internal: Any = internal_api
        state = internal.get_state_from_address(ray.get_runtime_context().gcs_address)
        while not self.over.wait(0.2):
            stats = internal.get_memory_info_reply(state).store_stats
            self.peak = max(self.peak, stats.object_store_bytes_used)
            self.spilled = max(self.spilled, stats.spilled_bytes_total)


def _write(folder: Path, name: str, pages: int) -> str:
    writer = PdfWriter({"Title": name})
    for page in range(pages):
        writer.add_page(text_content([f"{name}, page {page + 1}"]))
    path = folder / f"{name}.pdf"
    path.write_bytes(writer.to_bytes())
    return str(path)


def measure(job: Job) -> Row:
    pages, small = int(PAGES / job.scale), int(SMALL / job.scale)
    with tempfile.TemporaryDirectory(prefix="bench-pdf-", dir="/tmp") as name:
        folder = Path(name)
        uris = [_write(folder, "long", pages), *(_write(folder, f"small-{index}", 1) for index in range(small))]
        with Executor(Documents(), ray_init_kwargs=_OWN_RAY) as executor:
            executor.run(uris[1:3])
            watch = StoreWatch()
            watch.start()
            start = time.perf_counter()
            ends: dict[int, float] = {}
            values: dict[int, Any] = {}
            for outcome in executor.stream(uris):
                ends[outcome.index] = time.perf_counter() - start
                values[outcome.index] = outcome.value
            wall_s = time.perf_counter() - start
            watch.over.set()
            watch.join()
    small_ends = sorted(ends[index] for index in range(1, len(uris)))
    return row(
        job,
        wall_s=wall_s,
        ideal_s=(pages + small) * LOOK_S / 2,
        items=pages + small,
        items_per_s=(pages + small) / wall_s,
        exact=values == {0: [1] * pages} | {index: [1] for index in range(1, len(uris))},
        budget_mib=BUDGET / 2**20,
        peak_store_mib=watch.peak / 2**20,
        peak_over_budget=watch.peak / BUDGET,
        spilled_mib=watch.spilled / 2**20,
        small_half_done_share=small_ends[len(small_ends) // 2] / wall_s,
        small_before_long_share=sum(end < ends[0] for end in small_ends) / len(small_ends),
    )
