"""A vision-language model of real size, random weights, bfloat16, on one GPU; needs the extra ``vlm`` and a CUDA build.

``curve`` calls the model by hand at growing batch sizes. ``flow`` runs documents through the engine, pictures made on
the host by actors of their own: what counts is the share of time in which the GPU works, and the overlap of the two.
``--option size='"tiny"' --option device='"cpu"'`` tries the script where there is no GPU.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks import functions, ledger, vlm, workloads
from benchmarks.harness import Job, Row, row
from benchmarks.ledger import Ledger
from benchmarks.systems.local_ray import local_ray
from rayorch_flows import Executor, F, Pipeline, Port, RayModule

SYSTEMS = ("rayorch_flows",)
ARMS = ("curve", "flow")
SCALE = 1.0

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
DOCUMENTS = 300
BATCH = 64


class Draw:
    """Makes the picture of a page on the host, as a renderer would."""

    def __init__(self, pixels: int) -> None:
        self.pixels = pixels
        self.ledger = Ledger("render")

    def run(self, pages: list[functions.Page]) -> list[Any]:
        start = time.time()
        pictures = [vlm.picture(*page, self.pixels) for page in pages]
        self.ledger.write(start, len(pages))
        return pictures


class Read(vlm.Vlm):
    """The model over pictures that others have made."""

    def run(self, pages: list[Any]) -> list[list[int]]:
        start = time.time()
        tokens = self.read(self.torch.stack([self.torch.from_numpy(page) for page in pages]))
        self.ledger.write(start, len(pages))
        return tokens


class Documents(Pipeline):
    def __init__(self, size: vlm.Size, device: str, dtype: str, gpus: int) -> None:
        super().__init__()
        self.split = RayModule(functions.Split).ray_options(batch_size=16, num_cpus=0)
        self.render = (
            RayModule(Draw)
            .pre_init(size.pixels)
            .ray_options(replicas=4, batch_size=16, num_cpus=0, max_ready_bytes=2 * 1024**3)
        )
        self.read = RayModule(Read).pre_init(size, device, dtype)
        self.read.ray_options(batch_size=BATCH, num_gpus=gpus, num_cpus=0)

    def forward(self, documents: Port) -> Port:
        return F.reduce(self.read(self.render(F.expand(self.split(documents)))))


class Utilisation(threading.Thread):
    """Asks the driver of the GPU twice a second how busy it is."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.samples: list[int] = []
        self.over = threading.Event()

    def run(self) -> None:
        command = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
        while not self.over.wait(0.5):
            try:
                answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            except (OSError, subprocess.CalledProcessError):
                return
            self.samples.append(int(answer.split()[0]))

    def mean(self) -> float | None:
        return sum(self.samples) / len(self.samples) if self.samples else None


def measure(job: Job) -> Row:
    given = {"size": "real", "device": "cuda", "dtype": "bfloat16"} | job.options
    size = vlm.REAL if given["size"] == "real" else vlm.TINY
    if job.arm == "curve":
        return _curve(job, vlm.Vlm(size, given["device"], given["dtype"]))
    return _flow(job, size, given["device"], given["dtype"])


def _curve(job: Job, model: vlm.Vlm) -> Row:
    rates: dict[int, float] = {}
    pages = 0
    start = time.perf_counter()
    for batch in BATCHES:
        pictures = [(0, ordinal) for ordinal in range(batch)]
        model.run(pictures)
        began = time.perf_counter()
        rounds = 0
        while time.perf_counter() - began < 4 / job.scale or not rounds:
            model.run(pictures)
            rounds += 1
        rates[batch] = batch * rounds / (time.perf_counter() - began)
        pages += batch * rounds
    wall_s = time.perf_counter() - start
    return row(
        job,
        wall_s=wall_s,
        items=pages,
        items_per_s=max(rates.values()),
        exact=True,
        pages_per_s_by_batch={batch: round(rate, 2) for batch, rate in rates.items()},
    )


def _flow(job: Job, size: vlm.Size, device: str, dtype: str) -> Row:
    documents = workloads.log_normal(int(DOCUMENTS / job.scale))
    on_gpu = device == "cuda"
    watch = Utilisation()
    pipeline = Documents(size, device, dtype, int(on_gpu))
    with local_ray(store_bytes=4 * 1024**3 if on_gpu else 400_000_000), Executor(pipeline) as executor:
        executor.run([(0, BATCH)])
        watch.start()
        began = time.time()
        result = executor.run(list(enumerate(documents.pages)))
        wall_s = time.time() - began
        watch.over.set()
        watch.join()
    entries = [e for e in ledger.read(Path(os.environ[ledger.FOLDER])) if e.start >= began]
    return row(
        job,
        wall_s=wall_s,
        items=documents.total,
        items_per_s=documents.total / wall_s,
        calls=result.rpc_count,
        exact=[len(tokens) for tokens in result.outputs] == list(documents.pages),
        model_busy=ledger.busy(entries, "page") / wall_s,
        host_busy_s=ledger.busy(entries, "render"),
        gpu_utilisation=watch.mean(),
        mean_batch=ledger.rows(entries, "page") / sum(e.stage == "page" for e in entries),
    )
