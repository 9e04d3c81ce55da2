"""A flow that cannot run: ``$RAYORCH_TOY_LACKS`` is ``gpu``, ``package``, or nothing, and then it can."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa

from rayorch_flows import Pipeline, Port, RayModule
from rayorch_flows.orchestration.ingest.flow_definition import FlowDefinition


class Read:
    def __init__(self, package: str) -> None:
        import_module(package)

    def run(self, uris: list[str]) -> list[dict[str, str]]:
        return [{"text": Path(uri).read_text()} for uri in uris]


class Lacking(Pipeline):
    def __init__(self) -> None:
        super().__init__()
        lacks = os.environ.get("RAYORCH_TOY_LACKS")
        gpus: dict[str, Any] = {"num_gpus": 1} if lacks == "gpu" else {}
        self.read = RayModule(Read).pre_init("no_such_package" if lacks == "package" else "json")
        self.read.ray_options(num_cpus=0, **gpus)

    def forward(self, uris: Port) -> Port:
        return self.read(uris)


FLOW = FlowDefinition("lacking", Lacking, pa.schema([("text", pa.string())]), ("*.txt",))
