"""A flow that notes every row that a Function sees, so that a test can tell what was done twice.

Lines name their file: ``<stem> <number>``, and stems their corpus: ``<corpus><digits>``. The Function in the middle
waits when it has seen as many rows of a corpus as the file ``$RAYORCH_TOY_LOG.<corpus>`` allows, so that whatever a
test does to a run hits it in the middle, however slow the machine is.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pyarrow as pa

from rayorch_flows import F, Pipeline, RayModule
from rayorch_flows.orchestration.ingest.flow_definition import FlowDefinition
from tests.orchestration.toy_flow import note

ROW_S = 0.05
"""Longer than the way to the actor, so that dispatch batches go one by one."""


class Read:
    def run(self, uris: list[str]) -> list[list[str]]:
        for uri in uris:
            note(f"read {Path(uri).stem}")
        return [Path(uri).read_text().splitlines() for uri in uris]


def waits(corpus: str) -> bool:
    """Whether as many rows of the corpus have been seen as may be."""
    log = Path(os.environ["RAYORCH_TOY_LOG"])
    try:
        allowed = int(Path(f"{log}.{corpus}").read_text())
    except FileNotFoundError:
        return False
    return sum(line.startswith(f"shout {corpus}") for line in log.read_text().splitlines()) >= allowed


class Shout:
    def run(self, lines: list[str]) -> list[str]:
        for line in lines:
            time.sleep(ROW_S)
            while waits(line.split()[0].rstrip("0123456789")):
                time.sleep(ROW_S)
            note(f"shout {line}")
        return [line.upper() for line in lines]


class Join:
    def run(self, lines: list[list[str]]) -> list[dict[str, str]]:
        for each in lines:
            note(f"join {each[0].split()[0].lower()}")
        return [{"text": "\n".join(each)} for each in lines]


class Counted(Pipeline):
    def __init__(self, batch_size: int = 2) -> None:
        self.read = RayModule(Read).ray_options(batch_size=4, num_cpus=0)
        self.shout = RayModule(Shout).ray_options(batch_size=batch_size, num_cpus=0)
        self.join = RayModule(Join).ray_options(batch_size=1, num_cpus=0)

    def forward(self, uris):  # type: ignore[no-untyped-def]
        return self.join(F.reduce(self.shout(F.expand(self.read(uris), name="line"))))


_RECORD = pa.schema([("text", pa.string())])
FLOW = FlowDefinition("counted", Counted, _RECORD, ("*.txt",))
OTHER = FlowDefinition("counted", lambda: Counted(batch_size=1), _RECORD, ("*.txt",))
"""Runs in an engine host of its own."""
