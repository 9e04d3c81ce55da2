"""The programs for both lineage engines: the same text, and ``api`` says from which library it is built."""

from __future__ import annotations

import importlib
import time
from typing import Any

from benchmarks import functions, workloads
from benchmarks.harness import Measured
from benchmarks.systems.local_ray import local_ray


def pages_pipeline(api: str, page: Any, *, split: Any, gather: Any | None) -> Any:
    """documents -> pages -> ``page`` -> documents, with an assembly step if ``gather`` is given."""
    library: Any = importlib.import_module(api)

    class Documents(library.Pipeline):
        def __init__(self) -> None:
            super().__init__()
            self.split = split
            self.page = page
            self.gather = gather

        def forward(self, documents: Any) -> Any:
            results = self.page(library.F.expand(self.split(documents)))
            joined = library.F.reduce(results)
            return joined if self.gather is None else self.gather(joined)

    return Documents()


def sleeping(
    api: str,
    documents: workloads.Documents,
    *,
    actors: int,
    batch_size: int,
    page_s: float,
    batch_s: float = 0.0,
    input_batch_size: int | None = None,
    active: int = 1,
    options: dict[str, Any] | None = None,
) -> Measured:
    """The simulated model over the documents, with actors that are up before the clock starts."""
    library: Any = importlib.import_module(api)
    page = (
        library.RayModule(functions.ModelPage)
        .pre_init(page_s, batch_s, documents.poisoned, api)
        .ray_options(replicas=actors, batch_size=batch_size, num_cpus=0, **(options or {}))
    )
    split = library.RayModule(functions.Split).ray_options(replicas=1, batch_size=4, num_cpus=0)
    pipeline = pages_pipeline(api, page, split=split, gather=None)
    with local_ray(), library.Executor(pipeline) as executor:
        executor.run([(functions.WARM_UP, batch_size * 4)] * actors)
        began = time.time()
        result = executor.run(
            list(enumerate(documents.pages)),
            input_batch_size=input_batch_size,
            max_active_input_batches=active,
        )
        wall_s = time.time() - began
    outputs = [value if isinstance(value, list) else None for value in result.outputs]
    return Measured(began, wall_s, outputs, result.rpc_count)


def trivial(api: str, documents: workloads.Documents, *, options: dict[str, Any] | None = None) -> Measured:
    """Functions that cost nothing, twice over the same documents: the first run warms up."""
    library: Any = importlib.import_module(api)
    extra = options or {}
    split = library.RayModule(functions.Split).ray_options(replicas=1, batch_size=4, num_cpus=0, **extra)
    page = library.RayModule(functions.TrivialPage).ray_options(replicas=2, batch_size=64, num_cpus=0, **extra)
    gather = library.RayModule(functions.Gather).ray_options(replicas=1, batch_size=4, num_cpus=0, **extra)
    pipeline = pages_pipeline(api, page, split=split, gather=gather)
    with local_ray(), library.Executor(pipeline) as executor:
        executor.run(list(enumerate(documents.pages[:100])))
        before = _peak_kib()
        began = time.time()
        cpu = time.process_time()
        result = executor.run(list(enumerate(documents.pages)))
        wall_s = time.time() - began
        driver_cpu_s = time.process_time() - cpu
        grown = (_peak_kib() - before) * 1024
    grains = 2 * len(documents.pages) + documents.total
    extra_row = {
        "driver_cpu_s": driver_cpu_s,
        "driver_bytes_per_grain": grown / grains,
        "us_per_grain": wall_s / grains * 1e6,
    }
    return Measured(began, wall_s, list(result.outputs), result.rpc_count, extra_row)


def _peak_kib() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
