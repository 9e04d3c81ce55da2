"""Daft on its native runner, which on one machine is faster than its Ray runner. As for Ray Data, pages are rows before
the clock starts where the model is what is measured, and the regrouping is Daft's own."""

from __future__ import annotations

import time
from importlib import import_module
from typing import Any

from benchmarks import functions, workloads
from benchmarks.harness import Measured


def _daft(threads: int) -> Any:
    """Daft runs as many batches at once as it has threads, by default one a core."""
    daft: Any = import_module("daft")
    daft.set_runner_native(num_threads=threads)
    return daft


def sleeping(
    documents: workloads.Documents,
    *,
    actors: int,
    batch_size: int,
    page_s: float,
    batch_s: float = 0.0,
    **_: Any,
) -> Measured:
    daft = _daft(actors)
    answer = daft.DataType.struct({"value": daft.DataType.int64(), "failed": daft.DataType.bool()})

    @daft.cls(max_concurrency=actors, use_process=True)
    class ModelRows:
        def __init__(self) -> None:
            self.model = functions.Model(page_s, batch_s, documents.poisoned)

        @daft.method.batch(return_dtype=answer, batch_size=batch_size)
        def look(self, document: Any, ordinal: Any) -> Any:
            pages = list(zip(document.to_pylist(), ordinal.to_pylist(), strict=True))
            bad = self.model.look(pages)
            return [
                {"value": workloads.page_value(*page), "failed": failed}
                for page, failed in zip(pages, bad, strict=True)
            ]

    pages = [(index, ordinal) for index, count in enumerate(documents.pages) for ordinal in range(count)]
    columns = {"document": [page[0] for page in pages], "ordinal": [page[1] for page in pages]}
    source = daft.from_pydict(columns).into_batches(batch_size).collect()
    model = ModelRows()
    began = time.time()
    frame = source.with_column("answer", model.look(source["document"], source["ordinal"]))
    table = frame.select("document", "ordinal", daft.col("answer").unnest()).to_pandas()
    outputs = import_module("benchmarks.systems.raydata").regroup(documents, table)
    wall_s = time.time() - began
    return Measured(began, wall_s, outputs)


def trivial(documents: workloads.Documents, **_: Any) -> Measured:
    """Split, page and gather with Functions that cost nothing."""
    daft = _daft(2)
    integers = daft.DataType.list(daft.DataType.int64())

    @daft.func.batch(return_dtype=integers, batch_size=4)
    def split(pages: Any) -> Any:
        return [list(range(count)) for count in pages.to_pylist()]

    @daft.cls(max_concurrency=2)
    class Page:
        @daft.method.batch(return_dtype=daft.DataType.int64(), batch_size=64)
        def look(self, document: Any, ordinal: Any) -> Any:
            return functions.TrivialPage().run(list(zip(document.to_pylist(), ordinal.to_pylist(), strict=True)))

    model = Page()

    def run(pages: tuple[int, ...]) -> list[Any]:
        roots = daft.from_pydict({"document": list(range(len(pages))), "pages": list(pages)})
        rows = roots.with_column("ordinal", split(roots["pages"])).explode("ordinal")
        rows = rows.with_column("value", model.look(rows["document"], rows["ordinal"]))
        table = rows.select("document", "ordinal", "value").to_pandas()
        return import_module("benchmarks.systems.raydata").regroup(documents, table)

    run(documents.pages[:100])
    began = time.time()
    outputs = run(documents.pages)
    wall_s = time.time() - began
    grains = 2 * len(documents.pages) + documents.total
    return Measured(began, wall_s, outputs, -1, {"us_per_grain": wall_s / grains * 1e6})


def staged(documents: workloads.Documents, costs: Any, *, folder: str, **_: Any) -> Measured:
    """render -> OCR -> group by document -> assemble -> write; the grouping is Daft's own."""
    daft = _daft(costs.renderers + costs.actors + costs.assemblers)
    integers = daft.DataType.list(daft.DataType.int64())

    @daft.cls(max_concurrency=costs.renderers, use_process=True)
    class Render:
        def __init__(self) -> None:
            self.stage = functions.Render(costs.render_page_s)

        @daft.method.batch(return_dtype=integers, batch_size=1)
        def render(self, document: Any, pages: Any) -> Any:
            roots = zip(document.to_pylist(), pages.to_pylist(), strict=True)
            return [[ordinal for _, ordinal in self.stage.render(*root)] for root in roots]

    @daft.cls(max_concurrency=costs.actors, use_process=True)
    class Ocr:
        def __init__(self) -> None:
            self.model = functions.Model(costs.page_s, costs.batch_s, frozenset())

        @daft.method.batch(return_dtype=daft.DataType.int64(), batch_size=costs.batch_size)
        def look(self, document: Any, ordinal: Any) -> Any:
            pages = list(zip(document.to_pylist(), ordinal.to_pylist(), strict=True))
            self.model.look(pages)
            return [workloads.page_value(*page) for page in pages]

    @daft.cls(max_concurrency=costs.assemblers, use_process=True)
    class Assemble:
        def __init__(self) -> None:
            self.stage = functions.Assemble(costs.assemble_s)

        @daft.method.batch(return_dtype=integers, batch_size=1)
        def assemble(self, values: Any) -> Any:
            return [self.stage.assemble(sorted(pages)) for pages in values.to_pylist()]

    writer = functions.Writer(folder)
    columns = {"document": list(range(len(documents.pages))), "pages": list(documents.pages)}
    source = daft.from_pydict(columns).into_batches(1).collect()
    render, ocr, assemble = Render(), Ocr(), Assemble()
    began = time.time()
    pages = source.with_column("ordinal", render.render(source["document"], source["pages"])).explode("ordinal")
    pages = pages.into_batches(costs.batch_size)
    pages = pages.with_column("value", ocr.look(pages["document"], pages["ordinal"]))
    records = pages.groupby("document").agg(daft.col("value").list_agg())
    records = records.with_column("values", assemble.assemble(records["value"])).select("document", "values")
    outputs: list[Any] = [None] * len(documents.pages)
    for record in records.iter_rows():
        writer.write(record["document"], record["values"])
        outputs[record["document"]] = record["values"]
    return Measured(began, time.time() - began, outputs)
