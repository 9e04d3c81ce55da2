"""A flow without heavy Functions: text files into upper-case lines. Files say themselves how they misbehave.

A file that starts with ``ENCRYPTED`` fails for good; one that starts with ``SHAKY <path>`` fails retryably until that
path exists (it makes it); ``POISON`` in a line kills the engine's patience by raising. Every constructed Function and
every opened file is noted in ``$RAYORCH_TOY_LOG``, if that is set.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pyarrow as pa

from rayorch_flows import CauseKind, F, Pipeline, RayModule, RecordFailure
from rayorch_flows.orchestration.ingest.flow_definition import FlowDefinition


def note(line: str) -> None:
    log = os.environ.get("RAYORCH_TOY_LOG")
    if log:
        with open(log, "a") as file:
            file.write(line + "\n")


class Read:
    def __init__(self) -> None:
        note("construct Read")

    def run(self, uris: list[str]) -> list[object]:
        return [self._read(uri) for uri in uris]

    def _read(self, uri: str) -> object:
        note(f"read {uri}")
        text = Path(uri).read_text()
        if text.startswith("ENCRYPTED"):
            return RecordFailure("locked", kind=CauseKind.ENCRYPTED)
        if text.startswith("SHAKY"):
            marker = Path(text.split()[1])
            if not marker.exists():
                marker.touch()
                return RecordFailure("not yet", kind=CauseKind.UNREADABLE, retryable=True)
        return text.splitlines()


class Upper:
    def __init__(self, delay_s: float) -> None:
        note("construct Upper")
        self.delay_s = delay_s

    def run(self, lines: list[str]) -> list[object]:
        time.sleep(self.delay_s * len(lines))
        if any("POISON" in line for line in lines):
            raise ValueError("poison in the batch")
        return [RecordFailure("bad line") if line.startswith("BAD") else line.upper() for line in lines]


class Join:
    def run(self, lines: list[list[object]]) -> list[dict[str, str]]:
        return [{"text": "\n".join(str(line) for line in each)} for each in lines]


class Toy(Pipeline):
    def __init__(self, delay_s: float) -> None:
        self.read = RayModule(Read).ray_options(batch_size=4, num_cpus=0)
        self.upper = RayModule(Upper).pre_init(delay_s).ray_options(batch_size=8, num_cpus=0)
        self.join = RayModule(Join).ray_options(batch_size=4, num_cpus=0)

    def forward(self, uris):  # type: ignore[no-untyped-def]
        lines = F.expand(self.read(uris), name="line")
        return self.join(F.reduce(F.settle(self.upper(lines))))


def make(delay_s: float | None = None) -> Toy:
    return Toy(float(os.environ.get("RAYORCH_TOY_DELAY", "0")) if delay_s is None else delay_s)


FLOW = FlowDefinition("toy", make, pa.schema([("text", pa.string())]), ("*.txt",))
