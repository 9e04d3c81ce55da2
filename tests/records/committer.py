"""A process that commits overlapping microbatches; the concurrency test kills some of them.

Usage: python committer.py TABLE SEED SOURCES MICROBATCHES
Each source is in several microbatches; each microbatch sees some of its sources fail at first.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from rayorch_flows.records.table import RecordTable
from tests.records.helpers import RECORD, commit, failed, item, present


def microbatch(number: int, sources: int, microbatches: int) -> list[int]:
    """Twice the sources that an even split would give: neighbours overlap by half."""
    width = 2 * sources // microbatches
    start = number * sources // microbatches
    return [place % sources for place in range(start, start + width)]


def main(place: str, seed: int, sources: int, microbatches: int) -> None:
    chance = random.Random(seed)
    table = RecordTable(place, RECORD, flow="pdf")
    order = chance.sample(range(microbatches), microbatches)
    for number in order:
        members = microbatch(number, sources, microbatches)
        items = [item(f"{member:04}") for member in members]
        made = [
            failed(index) if chance.random() < 0.3 else present(index, f"text {member}" * 50)
            for index, member in enumerate(members)
        ]
        commit(table, items, made, microbatch=f"mb{number}", run=f"run{seed}")
        print(number, flush=True)
    everything = [item(f"{member:04}") for member in range(sources)]
    commit(table, everything, microbatch="last", run=f"run{seed}")


if __name__ == "__main__":
    main(sys.argv[1], *(int(argument) for argument in sys.argv[2:]))
