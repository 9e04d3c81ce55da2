"""A flow whose Functions do nothing: what is left is what orchestration costs."""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.ledger import Ledger
from rayorch_flows import F, Pipeline, Port, RayModule
from rayorch_flows.orchestration.ingest.flow_definition import FlowDefinition
from rayorch_flows.records.arrow import pa


class Open:
    """The number of pages stands in the file's name; the file is not read."""

    def __init__(self) -> None:
        self._ledger = Ledger("open")

    def run(self, uris: list[str]) -> list[list[int]]:
        start = time.time()
        pages = [list(range(int(Path(uri).stem.partition("-")[2]))) for uri in uris]
        self._ledger.write(start, len(uris))
        return pages


class Same:
    def run(self, pages: list[int]) -> list[int]:
        return pages


class Count:
    def run(self, documents: list[list[int]]) -> list[dict[str, int]]:
        return [{"n_pages": len(pages)} for pages in documents]


class Trivial(Pipeline):
    def __init__(self) -> None:
        super().__init__()
        self.open = RayModule(Open).ray_options(batch_size=64, num_cpus=0)
        self.page = RayModule(Same).ray_options(batch_size=64, num_cpus=0)
        self.count = RayModule(Count).ray_options(batch_size=64, num_cpus=0)

    def forward(self, uris: Port) -> Port:
        pages = F.expand(self.open(uris), name="page")
        return self.count(F.reduce(self.page(pages)))


FLOW = FlowDefinition("trivial", Trivial, pa.schema([("n_pages", pa.int32())]), ("*.doc",))
