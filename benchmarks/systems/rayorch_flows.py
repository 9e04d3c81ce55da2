"""This project."""

from __future__ import annotations

from functools import partial

from benchmarks.systems import lineage

sleeping = partial(lineage.sleeping, "rayorch_flows")
trivial = partial(lineage.trivial, "rayorch_flows")
staged = partial(lineage.staged, "rayorch_flows")
