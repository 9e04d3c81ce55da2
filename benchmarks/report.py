"""Turns the saved rows (benchmarks/results.jsonl) into the tables and pictures of benchmarks/README.md."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import pictures
from benchmarks.harness import Row, conclusions

FOLDER = Path(__file__).resolve().parent
RESULTS = FOLDER / "results.jsonl"
PICTURES = FOLDER / "pictures"
README = FOLDER / "README.md"

_PLAIN = ("system", "arm", "scale")
_COLUMNS: dict[str, tuple[str, ...]] = {
    "containment": ("wall_s", "ideal_s", "suppressed_share", "busy", "mean_batch"),
    "overhead": ("items", "wall_s", "items_per_s", "us_per_grain", "calls", "driver_bytes_per_grain"),
    "scaling": ("items", "wall_s", "ideal_s", "busy"),
    "fill": ("wall_s", "ideal_s", "over_ideal", "machine_s", "fill", "calls"),
    "ablation": ("wall_s", "ideal_s", "suppressed", "fill"),
    "timeline": ("wall_s", "ideal_s", "first_record_share", "tail_share"),
    "memory": ("items", "wall_s", "ideal_s", "peak_store_mib", "peak_over_budget", "spilled_mib",
               "small_before_long_share"),
    "real": ("items", "ocr_pages", "wall_s", "items_per_s", "digest"),
    "gpu": ("items", "wall_s", "items_per_s", "model_busy", "host_busy_s", "gpu_utilisation", "mean_batch"),
    "simulate": ("items", "busy", "fill", "driver_busy", "call_us", "machine_us_per_batch",
                 "saturates_at_gpus", "one_core_gpus"),
    "ingest": ("items", "wall_s", "microbatches", "microbatch_s", "engine_s", "api_calls", "api_calls_by_work",
               "server_p50_ms", "server_p95_ms", "server_max_ms", "list_s", "look_s"),
    "deployed": ("items", "wall_s", "ideal_s", "worst_s", "to_task_s", "to_work_s", "first_run_s"),
}  # fmt: skip


def latest(path: Path = RESULTS) -> list[Row]:
    """The last saved row of each system and arm."""
    found: dict[tuple[Any, ...], Row] = {}
    for line in path.read_text().splitlines():
        row: Row = json.loads(line)
        found[row["benchmark"], row["system"], row["arm"]] = row
    return list(found.values())


def table(name: str, rows: list[Row]) -> str:
    columns = [c for c in (*_PLAIN, *_COLUMNS[name], "exact") if any(row.get(c) is not None for row in rows)]
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(_cell(row.get(column)) for column in columns) + " |" for row in rows]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _wall(title: str) -> Callable[[list[Row]], str]:
    def draw(rows: list[Row]) -> str:
        ideal = max((row["ideal_s"] or 0.0) for row in rows) or None
        values = [
            (f"{row['system']}, {row['arm']}", row["system"], row["wall_s"], f"{row['wall_s']:.1f} s") for row in rows
        ]
        return pictures.bars(title, values, mark=ideal)

    return draw


def _rate(title: str) -> Callable[[list[Row]], str]:
    def draw(rows: list[Row]) -> str:
        values = [
            (f"{row['system']}, {row['arm']}", row["system"], row["items_per_s"], f"{row['items_per_s']:,.0f}/s")
            for row in rows
        ]
        return pictures.bars(title, values)

    return draw


def _scaling(rows: list[Row]) -> str:
    values = [
        (f"{row['system']}, {row['arm']} actors", row["system"], row["ideal_s"] / row["wall_s"],
         f"{row['ideal_s'] / row['wall_s']:.1%} of linear") for row in rows
    ]  # fmt: skip
    return pictures.bars("Share of linear scaling", values, mark=1.0)


def _busy(rows: list[Row]) -> str:
    values = [(f"{row['arm']} GPUs", row["system"], row["busy"], f"{row['busy']:.1%} busy") for row in rows]
    return pictures.bars("Simulated GPUs that one driver keeps busy", values, mark=1.0)


def _timeline(rows: list[Row]) -> str:
    return pictures.timelines("When each stage works", [(row["system"], row["wall_s"], row["windows"]) for row in rows])


_DRAWINGS: dict[str, Callable[[list[Row]], str]] = {
    "containment": _wall("Wall time, and the ideal of a clean run"),
    "overhead": _rate("Pages a second through Functions that do nothing"),
    "scaling": _scaling,
    "fill": _wall("Wall time, and the simulated optimum"),
    "ablation": _wall("Wall time by step, and the ideal"),
    "timeline": _timeline,
    "real": _rate("Pages a second of real work"),
    "simulate": _busy,
}


def write() -> None:
    """Renew every ``<!-- rows NAME -->`` block of the README, and the pictures beside it."""
    rows = latest()
    PICTURES.mkdir(exist_ok=True)
    text = README.read_text()
    for name in _COLUMNS:
        chosen = [row for row in rows if row["benchmark"] == name and row.get("wall_s")]
        if not chosen:
            continue
        parts = [table(name, chosen), *(f"- {line}" for line in conclusions(name, chosen))]
        if name in _DRAWINGS:
            (PICTURES / f"{name}.svg").write_text(_DRAWINGS[name](chosen))
            parts.append(f"\n![{name}](pictures/{name}.svg)")
        parts[0] += "\n"
        text = _put(text, name, "\n".join(parts))
    README.write_text(text)


def _put(text: str, name: str, body: str) -> str:
    def around(match: re.Match[str]) -> str:
        return f"{match[1]}{body}\n{match[2]}"

    return re.sub(rf"(<!-- rows {name} -->\n).*?(<!-- end -->)", around, text, flags=re.DOTALL)
