"""The published RayOrch library."""

from __future__ import annotations

from functools import partial

from benchmarks.systems import lineage

sleeping = partial(lineage.sleeping, "rayorch")
trivial = partial(lineage.trivial, "rayorch")
staged = partial(lineage.staged, "rayorch")
