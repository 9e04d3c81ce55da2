"""The physical floor: bare Ray actors and a hand-written loop, two calls in flight on each, nothing else."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from itertools import islice
from typing import Any, cast

import ray

from benchmarks import functions, workloads
from benchmarks import vlm as model
from benchmarks.harness import Measured
from benchmarks.systems.local_ray import local_ray

IN_FLIGHT = 2


def _chunks(items: Sequence[Any], size: int) -> Iterable[Any]:
    it = iter(items)
    while chunk := list(islice(it, size)):
        yield chunk


def sleeping(
    documents: workloads.Documents,
    *,
    actors: int,
    batch_size: int,
    page_s: float,
    batch_s: float = 0.0,
    **_: Any,
) -> Measured:
    """A pool over the flat list of pages: it knows nothing of documents, and contains no failure."""
    pages = [(index, ordinal) for index, count in enumerate(documents.pages) for ordinal in range(count)]
    remote: Any = ray.remote(num_cpus=0)(functions.ModelPage)
    with local_ray():
        pool = [
            remote.remote(page_s, batch_s, documents.poisoned, "benchmarks.systems.floor_failure")
            for _ in range(actors)
        ]
        ray.get([actor.run.remote([(functions.WARM_UP, 0)]) for actor in pool])
        began = time.time()
        values = [value for batch in _drive([(pool, _chunks(pages, batch_size))])[0] for value in batch]
        wall_s = time.time() - began
    outputs = _regroup(documents, values)
    return Measured(began, wall_s, outputs, -(-len(pages) // batch_size))


def _regroup(documents: workloads.Documents, values: list[Any]) -> list[Any]:
    it = iter(values)
    grouped = [list(islice(it, count)) for count in documents.pages]
    return [None if index in documents.poisoned else group for index, group in enumerate(grouped)]


def trivial(documents: workloads.Documents, **_: Any) -> Measured:
    """As many bare calls as the three steps need, with the same payloads: no step waits for another."""
    roots = list(enumerate(documents.pages))
    pages = [(index, ordinal) for index, count in roots for ordinal in range(count)]
    gathered = [[workloads.page_value(index, ordinal) for ordinal in range(count)] for index, count in roots]
    kinds = (functions.Split, functions.TrivialPage, functions.Gather)
    split, page, gather = (cast(Any, ray.remote(num_cpus=0)(kind)) for kind in kinds)
    with local_ray():
        pools = ([split.remote()], [page.remote(), page.remote()], [gather.remote()])
        ray.get([actor.run.remote([]) for pool in pools for actor in pool])
        work = (_chunks(roots, 4), _chunks(pages, 64), _chunks(gathered, 4))
        began = time.time()
        answers = _drive(list(zip(pools, work, strict=True)))
        wall_s = time.time() - began
    outputs = [document for batch in answers[2] for document in batch]
    calls = sum(len(batches) for batches in answers)
    grains = 2 * len(roots) + len(pages)
    return Measured(began, wall_s, outputs, calls, {"us_per_grain": wall_s / grains * 1e6})


def _drive(steps: list[tuple[Sequence[Any], Iterable[Any]]]) -> list[list[Any]]:
    """Keep every actor at two calls until its pool's batches are used up; results in the order of the batches."""
    waiting = [iter(batches) for _, batches in steps]
    order: dict[Any, tuple[int, int, Any]] = {}
    results: list[dict[int, Any]] = [{} for _ in steps]

    def send(step: int, actor: Any) -> None:
        batch = next(waiting[step], None)
        if batch is not None:
            index = len(results[step])
            results[step][index] = None
            order[actor.run.remote(batch)] = (step, index, actor)

    for step, (pool, _) in enumerate(steps):
        for actor in [actor for _ in range(IN_FLIGHT) for actor in pool]:
            send(step, actor)
    while order:
        done, _ = ray.wait(list(order), num_returns=1)
        for ref in done:
            step, index, actor = order.pop(ref)
            results[step][index] = ray.get(ref)
            send(step, actor)
    return [[answers[index] for index in range(len(answers))] for answers in results]


def pdf(uris: list[str], *, actors: int, on_ray: bool = False) -> Measured:
    """A process pool, one document a task, as one would write it by hand; ``on_ray``: the same on bare Ray actors."""
    if on_ray:
        return _pdf_on_ray(uris, actors)
    with ProcessPoolExecutor(actors, multiprocessing.get_context("spawn"), initializer=_make_document) as pool:
        list(pool.map(_one_document, uris[-actors:]))
        began = time.time()
        records = list(pool.map(_one_document, uris))
        wall_s = time.time() - began
    return Measured(began, wall_s, records, len(uris))


def _pdf_on_ray(uris: list[str], actors: int) -> Measured:
    remote: Any = ray.remote(num_cpus=0)(import_module("benchmarks.stages_pdf").Document)
    with local_ray():
        pool = [remote.remote() for _ in range(actors)]
        ray.get([actor.run.remote(uri) for actor, uri in zip(pool, uris[-actors:], strict=True)])
        began = time.time()
        records = _drive([(pool, uris)])[0]
        wall_s = time.time() - began
    return Measured(began, wall_s, records, len(uris))


def vlm(documents: workloads.Documents, *, actors: int, **_: Any) -> Measured:
    """A process pool over documents: batches hold pages of one document."""
    with ProcessPoolExecutor(actors, multiprocessing.get_context("spawn"), initializer=_make_model) as pool:
        list(pool.map(_one_captioned, [(functions.WARM_UP, model.BATCH)] * actors))
        order = sorted(enumerate(documents.pages), key=lambda root: -root[1])
        began = time.time()
        answers = dict(zip((index for index, _ in order), pool.map(_one_captioned, order), strict=True))
        wall_s = time.time() - began
    return Measured(began, wall_s, [answers[index] for index in range(len(documents.pages))])


_worker: dict[str, Any] = {}


def _make_document() -> None:
    _worker["document"] = import_module("benchmarks.stages_pdf").Document()


def _one_document(uri: str) -> Any:
    return _worker["document"].run(uri)


def _make_model() -> None:
    _worker["model"] = model.Vlm()


def _one_captioned(root: tuple[int, int]) -> list[list[int]]:
    document, count = root
    pages = [(document, ordinal) for ordinal in range(count)]
    return [tokens for batch in _chunks(pages, model.BATCH) for tokens in _worker["model"].run(batch)]
