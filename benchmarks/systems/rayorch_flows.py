"""This project."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from benchmarks import functions, workloads
from benchmarks import vlm as model
from benchmarks.harness import Measured
from benchmarks.systems import lineage
from benchmarks.systems.local_ray import local_ray
from rayorch_flows import Executor, RayModule
from rayorch_flows.flows.pdf import PdfPipeline

sleeping = partial(lineage.sleeping, "rayorch_flows")
trivial = partial(lineage.trivial, "rayorch_flows")
staged = partial(lineage.staged, "rayorch_flows")


def pdf(uris: list[str], *, actors: int, **_: Any) -> Measured:
    """The PDF flow as it ships, run by an Executor."""
    with local_ray(cpus=max(4, 2 * actors)), Executor(PdfPipeline(ocr_replicas=actors)) as executor:
        executor.run(uris[-1:])
        began = time.time()
        result = executor.run(uris)
        wall_s = time.time() - began
    records = [value if isinstance(value, dict) else None for value in result.outputs]
    return Measured(began, wall_s, records, result.rpc_count)


def vlm(documents: workloads.Documents, *, actors: int, **_: Any) -> Measured:
    """The vision-language model over all pages of all documents."""
    page = RayModule(model.Vlm).ray_options(replicas=actors, batch_size=model.BATCH, num_cpus=0)
    split = RayModule(functions.Split).ray_options(batch_size=32, num_cpus=0)
    pipeline = lineage.pages_pipeline("rayorch_flows", page, split=split, gather=None)
    with local_ray(), Executor(pipeline) as executor:
        lineage.warm_up(executor, actors, model.BATCH)
        began = time.time()
        result = executor.run(list(enumerate(documents.pages)))
        wall_s = time.time() - began
    return Measured(began, wall_s, list(result.outputs), result.rpc_count)
