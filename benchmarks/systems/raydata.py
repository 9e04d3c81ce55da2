"""Ray Data. Pages are expanded into rows outside the clock, one block a batch, so that its actors get full batches; the
results are brought together by document with pandas in the driver, the fastest way at these sizes."""

from __future__ import annotations

import pickle
import time
from importlib import import_module
from typing import Any

import numpy as np

from benchmarks import functions, workloads
from benchmarks.harness import Measured
from benchmarks.systems.local_ray import local_ray

Batch = dict[str, Any]


class ModelRows(functions.Model):
    """The model over rows: an error column carries the failure, as rows cannot fail."""

    def __call__(self, batch: Batch) -> Batch:
        pages = list(zip(batch["document"].tolist(), batch["ordinal"].tolist(), strict=True))
        bad = self.look(pages)
        values = [workloads.page_value(*page) for page in pages]
        return batch | {"value": np.array(values), "failed": np.array(bad)}


class TrivialRows:
    def __call__(self, batch: Batch) -> Batch:
        return batch | {"value": workloads.page_values(batch["document"], batch["ordinal"])}


def _data() -> Any:
    data: Any = import_module("ray.data")
    context = data.DataContext.get_current()
    context.enable_progress_bars = False
    return data


def _pool(data: Any, actors: int) -> Any:
    return data.ActorPoolStrategy(size=actors, max_tasks_in_flight_per_actor=2)


def sleeping(
    documents: workloads.Documents,
    *,
    actors: int,
    batch_size: int,
    page_s: float,
    batch_s: float = 0.0,
    **_: Any,
) -> Measured:
    with local_ray(cpus=actors + 2):
        data = _data()
        rows = [
            {"document": index, "ordinal": ordinal}
            for index, count in enumerate(documents.pages)
            for ordinal in range(count)
        ]
        blocks = -(-len(rows) // batch_size)
        source = data.from_items(rows, override_num_blocks=blocks).materialize()
        began = time.time()
        table = source.map_batches(
            ModelRows,
            fn_constructor_args=(page_s, batch_s, documents.poisoned),
            batch_size=batch_size,
            compute=_pool(data, actors),
            num_cpus=1,
        ).to_pandas()
        outputs = regroup(documents, table)
        wall_s = time.time() - began
    return Measured(began, wall_s, outputs, blocks)


def regroup(documents: workloads.Documents, table: Any) -> list[Any]:
    """Documents in order, pages in order; a document with a failed page is left out."""
    table = table.sort_values(["document", "ordinal"])
    values = {document: group.tolist() for document, group in table.groupby("document")["value"]}
    failed: set[int] = set(table.loc[table["failed"], "document"].tolist()) if "failed" in table else set()
    return [None if index in failed else values.get(index) for index in range(len(documents.pages))]


def trivial(documents: workloads.Documents, **_: Any) -> Measured:
    """Split, page and gather with Functions that cost nothing."""

    def split(row: Batch) -> list[Batch]:
        return [{"document": row["document"], "ordinal": ordinal} for ordinal in range(row["pages"])]

    with local_ray():
        data = _data()

        def run(roots: list[Batch]) -> list[Any]:
            table = (
                data.from_items(roots)
                .flat_map(split)
                .map_batches(TrivialRows, batch_size=64, compute=_pool(data, 2), num_cpus=1)
                .to_pandas()
            )
            return regroup(documents, table)

        roots = [{"document": index, "pages": count} for index, count in enumerate(documents.pages)]
        run(roots[:100])
        began = time.time()
        outputs = run(roots)
        wall_s = time.time() - began
    grains = 2 * len(roots) + documents.total
    return Measured(began, wall_s, outputs, -1, {"us_per_grain": wall_s / grains * 1e6})


def staged(documents: workloads.Documents, costs: Any, *, folder: str, **_: Any) -> Measured:
    """render -> OCR -> group by document -> assemble -> write; the grouping is Ray Data's own."""

    class Render:
        def __init__(self) -> None:
            self.stage = functions.Render(costs.render_page_s)

        def __call__(self, root: Batch) -> list[Batch]:
            pages = self.stage.render(int(root["document"]), int(root["pages"]))
            return [{"document": document, "ordinal": ordinal} for document, ordinal in pages]

    def assemble(group: Any) -> Any:
        group = group.sort_values("ordinal")
        values = functions.Assemble(costs.assemble_s).assemble(group["value"].tolist())
        return import_module("pandas").DataFrame({"document": [group["document"].iloc[0]], "values": [values]})

    with local_ray(cpus=costs.renderers + costs.actors + costs.assemblers + 3):
        data = _data()
        data.DataContext.get_current().min_hash_shuffle_aggregator_wait_time_in_s = 0
        writer = functions.Writer(folder)
        roots = [{"document": index, "pages": count} for index, count in enumerate(documents.pages)]
        source = data.from_items(roots, override_num_blocks=len(roots)).materialize()
        began = time.time()
        records = (
            source.flat_map(Render, compute=_pool(data, costs.renderers), num_cpus=1)
            .map_batches(
                ModelRows,
                fn_constructor_args=(costs.page_s, costs.batch_s, frozenset()),
                batch_size=costs.batch_size,
                compute=_pool(data, costs.actors),
                num_cpus=1,
            )
            .groupby("document", num_partitions=4)
            .map_groups(assemble, batch_format="pandas", num_cpus=1)
        )
        outputs: list[Any] = [None] * len(roots)
        for record in records.iter_rows():
            document, values = int(record["document"]), [int(value) for value in record["values"]]
            writer.write(document, values)
            outputs[document] = values
        wall_s = time.time() - began
    return Measured(began, wall_s, outputs)


def pdf(uris: list[str], *, actors: int, **_: Any) -> Measured:
    """Documents to page rows, everything of a page in one actor stage so that no picture is moved, group, assemble."""
    stages: Any = import_module("benchmarks.stages_pdf")

    class Open:
        def __init__(self) -> None:
            self.stage = stages.OpenPdf()

        def __call__(self, row: Batch) -> list[Batch]:
            (refs,), (info,) = self.stage.run([row["uri"]])
            if isinstance(refs, stages.Lost):
                return []
            about = pickle.dumps(info)
            return [{"uri": ref.uri, "ordinal": ref.index, "ref": pickle.dumps(ref), "info": about} for ref in refs]

    class Read:
        def __init__(self) -> None:
            self.stage = stages.Pages()

        def __call__(self, batch: Batch) -> Batch:
            pages = self.stage.run([pickle.loads(ref) for ref in batch["ref"]])
            kept = {name: batch[name] for name in ("uri", "ordinal", "info")}
            return kept | {"page": np.array([pickle.dumps(page) for page in pages], dtype=object)}

    def assemble(group: Any) -> Any:
        group = group.sort_values("ordinal")
        pages = [pickle.loads(page) for page in group["page"]]
        record = stages.whole(stages.AssembleMarkdown(), pickle.loads(group["info"].iloc[0]), pages)
        return import_module("pandas").DataFrame({"uri": [group["uri"].iloc[0]], "record": [pickle.dumps(record)]})

    with local_ray(cpus=actors + 4):
        data = _data()
        source = data.from_items([{"uri": uri} for uri in uris], override_num_blocks=len(uris)).materialize()

        def run(dataset: Any) -> dict[str, Any]:
            records = (
                dataset.flat_map(Open, compute=_pool(data, 1), num_cpus=0.5)
                .map_batches(Read, batch_size=4, compute=_pool(data, actors), num_cpus=0.5)
                .groupby("uri", num_partitions=2)
                .map_groups(assemble, batch_format="pandas", num_cpus=0.5)
            )
            return {row["uri"]: pickle.loads(row["record"]) for row in records.iter_rows()}

        began = time.time()
        records = run(source)
        wall_s = time.time() - began
    return Measured(began, wall_s, [records.get(uri) for uri in uris])


def vlm(documents: workloads.Documents, *, actors: int, **_: Any) -> Measured:
    """The vision-language model over page rows, brought back to documents in the driver."""
    model: Any = import_module("benchmarks.vlm")

    class Caption:
        def __init__(self) -> None:
            self.model = model.Vlm()
            self.model.run([(functions.WARM_UP, ordinal) for ordinal in range(model.BATCH)])

        def __call__(self, batch: Batch) -> Batch:
            pages = list(zip(batch["document"].tolist(), batch["ordinal"].tolist(), strict=True))
            return batch | {"value": np.array(self.model.run(pages))}

    with local_ray(cpus=actors + 2):
        data = _data()
        rows = [
            {"document": index, "ordinal": ordinal}
            for index, count in enumerate(documents.pages)
            for ordinal in range(count)
        ]
        source = data.from_items(rows, override_num_blocks=-(-len(rows) // model.BATCH)).materialize()
        began = time.time()
        table = source.map_batches(Caption, batch_size=model.BATCH, compute=_pool(data, actors), num_cpus=1).to_pandas()
        outputs = [[list(map(int, tokens)) for tokens in values] for values in regroup(documents, table)]
        wall_s = time.time() - began
    return Measured(began, wall_s, outputs)
