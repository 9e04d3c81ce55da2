"""About ten minutes of everything, at reduced sizes."""

from __future__ import annotations

from benchmarks.harness import Job

_PARTS: tuple[tuple[str, tuple[str, ...], tuple[str, ...], float], ...] = (
    ("overhead", ("floor", "rayorch_flows", "rayorch", "raydata", "daft"), ("1000",), 1.0),
    ("containment", ("rayorch_flows", "rayorch", "raydata", "daft"), ("clean", "poisoned"), 50.0),
    ("scaling", ("rayorch_flows",), ("4", "32"), 8.0),
    ("fill", ("rayorch_flows", "rayorch"), ("clean",), 4.0),
    ("ablation", ("rayorch_flows",), ("streaming-clean", "fifo-clean", "tail-clean"), 8.0),
    ("timeline", ("rayorch_flows", "raydata", "daft"), ("clean",), 8.0),
    ("memory", ("rayorch_flows",), ("budget",), 20.0),
    ("real", ("rayorch_flows", "raydata", "floor"), ("pdf",), 5.0),
    ("ingest", ("rayorch_flows",), ("sources",), 20.0),
    ("deployed", ("rayorch_flows",), ("microbatch",), 3.0),
    ("simulate", ("rayorch_flows",), ("64", "1500"), 20.0),
)


def jobs() -> list[Job]:
    return [
        Job(name, system, arm, scale) for name, systems, arms, scale in _PARTS for arm in arms for system in systems
    ]
