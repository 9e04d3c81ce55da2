"""The programs for both lineage engines: the same text, and ``api`` says from which library it is built."""

from __future__ import annotations

import importlib
import time
from dataclasses import dataclass
from typing import Any

from benchmarks import functions, ledger, workloads
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
    split_batch: int = 4,
    options: dict[str, Any] | None = None,
) -> Measured:
    """The simulated model over the documents, with actors that are up before the clock starts."""
    library: Any = importlib.import_module(api)
    page = (
        library.RayModule(functions.ModelPage)
        .pre_init(page_s, batch_s, documents.poisoned, api)
        .ray_options(replicas=actors, batch_size=batch_size, num_cpus=0, **(options or {}))
    )
    split = library.RayModule(functions.Split).ray_options(replicas=1, batch_size=split_batch, num_cpus=0)
    pipeline = pages_pipeline(api, page, split=split, gather=None)
    with local_ray(), library.Executor(pipeline) as executor:
        warm_up(executor, actors, batch_size)
        began = time.time()
        result = executor.run(
            list(enumerate(documents.pages)),
            input_batch_size=input_batch_size,
            max_active_input_batches=active,
        )
        wall_s = time.time() - began
    outputs = [value if isinstance(value, list) else None for value in result.outputs]
    return Measured(began, wall_s, outputs, result.rpc_count)


def warm_up(executor: Any, actors: int, batch_size: int) -> None:
    """Let every actor work once: those that start late would be missing from the measured run."""
    deadline = time.monotonic() + 300
    while ledger.up() < actors:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{ledger.up()} of {actors} actors are up after five minutes")
        executor.run([(functions.WARM_UP, batch_size)] * (2 * actors))


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


@dataclass(frozen=True)
class Costs:
    """Actors, batch limits and sleeping times of a render, OCR and assemble pipeline."""

    renderers: int = 2
    render_page_s: float = 0.004
    actors: int = 4
    batch_size: int = 48
    page_s: float = 0.02
    batch_s: float = 0.2
    assemblers: int = 1
    assemble_s: float = 0.05


def staged_pipeline(
    api: str,
    costs: Costs,
    *,
    poisoned: frozenset[int] = frozenset(),
    by_document: bool = False,
    options: dict[str, Any] | None = None,
) -> Any:
    """render -> OCR -> assemble; ``by_document`` leaves the pages of a document together in OCR."""
    library: Any = importlib.import_module(api)
    module = library.RayModule

    class Staged(library.Pipeline):
        def __init__(self) -> None:
            super().__init__()
            self.render = (
                module(functions.Render)
                .pre_init(costs.render_page_s)
                .ray_options(replicas=costs.renderers, batch_size=1, num_cpus=0)
            )
            model = (
                module(functions.DocumentModel).pre_init(costs.page_s, costs.batch_s, poisoned, api, costs.batch_size)
                if by_document
                else module(functions.ModelPage).pre_init(costs.page_s, costs.batch_s, poisoned, api)
            )
            self.page = model.ray_options(
                replicas=costs.actors,
                batch_size=1 if by_document else costs.batch_size,
                num_cpus=0,
                **(options or {}),
            )
            self.assemble = (
                module(functions.Assemble)
                .pre_init(costs.assemble_s)
                .ray_options(replicas=costs.assemblers, batch_size=1, num_cpus=0)
            )

        def forward(self, documents: Any) -> Any:
            groups = self.render(documents)
            if by_document:
                return self.assemble(self.page(groups))
            return self.assemble(library.F.reduce(self.page(library.F.expand(groups))))

    return Staged()


def staged(
    api: str,
    documents: workloads.Documents,
    costs: Costs,
    *,
    folder: str | None = None,
    by_document: bool = False,
    options: dict[str, Any] | None = None,
) -> Measured:
    """The three stages over the documents; with ``folder`` each record is written as soon as it streams out."""
    library: Any = importlib.import_module(api)
    pipeline = staged_pipeline(api, costs, poisoned=documents.poisoned, by_document=by_document, options=options)
    with local_ray(), library.Executor(pipeline) as executor:
        warm_up(executor, costs.actors, costs.batch_size)
        began = time.time()
        roots = list(enumerate(documents.pages))
        if folder is None:
            result = executor.run(roots)
            return Measured(began, time.time() - began, list(result.outputs), result.rpc_count)
        writer = functions.Writer(folder)
        outputs: list[Any] = [None] * len(roots)
        for outcome in executor.stream(roots):
            writer.write(outcome.index, outcome.value)
            outputs[outcome.index] = outcome.value
        return Measured(began, time.time() - began, outputs)


def _peak_kib() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
