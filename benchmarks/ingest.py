"""An ingest of many sources whose Functions do nothing, and what it asks of the Prefect server meanwhile.

``sources``: 10,000 documents of one page. ``pages``: the same with 50 pages a document. Calls of the API
are counted in the server; every 0.25 s a flow run is read, as the UI does. Afterwards the sensor looks at the sources
again: ``look_s``, ``list_s`` of it to list them.
"""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from benchmarks import prefect_lab
from benchmarks.harness import Job, Row, row
from benchmarks.prefect_lab import FLOW, Lab
from rayorch_flows.orchestration.arrival.sensor import look
from rayorch_flows.orchestration.ingest.ingest_flow import list_place
from rayorch_flows.orchestration.ingest.prepared_flow import prepare
from rayorch_flows.orchestration.settings.places import Places, SourcePlace, TablePlace, Tuning
from rayorch_flows.records.table import RecordTable

SYSTEMS = ("rayorch_flows",)
ARMS = ("sources", "pages")
SCALE = 1.0

DOCUMENTS = 10_000
MICROBATCH = 32
CONCURRENCY = 4
BAR_S = 0.5
"""What a microbatch may cost beyond the engine's own time."""
PROBE_S = 0.25
LOOKS = 5
_CLOCKED = ("POST /api/flow_runs/filter", "PATCH /api/artifacts/ID", "message /api/events/in", "POST /api/logs/")
"""What a run asks by the clock and not by its work: is somebody cancelling, progress, heartbeats, bundles of logs."""


def measure(job: Job) -> Row:
    documents = int(DOCUMENTS / job.scale)
    concurrency = int(job.options.get("concurrency", CONCURRENCY))
    size = int(job.options.get("microbatch_size", MICROBATCH))
    pages = 50 if job.arm == "pages" else 1
    with tempfile.TemporaryDirectory(prefix="bench-lab-", dir="/tmp") as folder, prefect_lab.a_lab(Path(folder)) as lab:
        warm = lab.sources("warm", [pages] * 2)
        _ingest(lab, warm, lab.folder / "warm-table", size, concurrency)
        source, table = lab.sources("sources", [pages] * documents), lab.folder / "table"
        before = Counter(lab.counts())
        with _probed(lab) as latencies:
            began = time.monotonic()
            summary = _ingest(lab, source, table, size, concurrency)
            command_s = time.monotonic() - began
        calls = Counter(lab.counts()) - before
        rows = RecordTable.open(table).rows(["outcome", "n_pages"]).to_pylist()
        list_s, look_s = _looks(source, table)
    del calls["GET /counts"]
    calls["POST /api/flow_runs/filter"] -= len(latencies)
    microbatches = summary["microbatches"]
    mine = {name: count for name, count in calls.items() if name not in _CLOCKED}
    latencies.sort()
    return row(
        job,
        wall_s=summary["elapsed_s"],
        ideal_s=BAR_S * microbatches,
        items=documents,
        items_per_s=documents / summary["elapsed_s"],
        exact=len(rows) == documents and all(each == {"outcome": "present", "n_pages": pages} for each in rows),
        command_s=command_s,
        microbatches=microbatches,
        microbatch_s=summary["elapsed_s"] / microbatches,
        engine_s=summary["engine_s"] / microbatches,
        api_calls=sum(calls.values()) / microbatches,
        api_calls_by_work=sum(mine.values()) / microbatches,
        server_p50_ms=_quantile(latencies, 0.5) * 1e3,
        server_p95_ms=_quantile(latencies, 0.95) * 1e3,
        server_max_ms=latencies[-1] * 1e3,
        list_s=list_s,
        look_s=look_s,
        calls_by_path={name: round(count / microbatches, 2) for name, count in calls.most_common(24)},
    )


def _ingest(lab: Lab, source: Path, table: Path, size: int, concurrency: int) -> dict[str, float]:
    """Run the command; its summary."""
    arguments = ["--table", str(table), "--flow", FLOW, "--microbatch-size", str(size)]
    arguments += ["--concurrency", str(concurrency), "--json"]
    return json.loads(lab.run("rayorch_flows.cli", "ingest", str(source), *arguments).splitlines()[-1])


def _looks(source: Path, table: Path) -> tuple[float, float]:
    """Seconds to list the sources, and for the sensor to find that there is nothing new among them; medians."""
    prepared = prepare(FLOW)
    places = Places(TablePlace(str(table)), SourcePlace(str(source)), None, Tuning({}))
    listing: list[float] = []
    looking: list[float] = []
    for _ in range(LOOKS):
        began = time.monotonic()
        list_place(places.source, prepared, problems=[])
        listed = time.monotonic()
        if look(places, prepared, settle_s=0).pending:
            raise RuntimeError("the sensor takes sources for new that are in the table")
        listing.append(listed - began)
        looking.append(time.monotonic() - listed)
    return median(listing), median(looking)


@contextmanager
def _probed(lab: Lab) -> Generator[list[float]]:
    """Read the latest flow run at a steady pace; how long each reading took."""
    took: list[float] = []
    over = threading.Event()

    def probe() -> None:
        while not over.wait(PROBE_S):
            began = time.monotonic()
            lab.ask("flow_runs/filter", {"limit": 1, "sort": "START_TIME_DESC"})
            took.append(time.monotonic() - began)

    thread = threading.Thread(target=probe)
    thread.start()
    try:
        yield took
    finally:
        over.set()
        thread.join()


def _quantile(values: list[float], share: float) -> float:
    return values[min(len(values) - 1, int(share * len(values)))]


def conclude(rows: list[Row]) -> list[str]:
    lines = [
        f"{each['arm']}: {each['microbatch_s']:.2f} s a microbatch in all, {CONCURRENCY} at a time; while it runs, the "
        f"server answers in {each['server_p50_ms']:.0f} ms, 95% of the time within {each['server_p95_ms']:.0f} ms, "
        f"always within {each['server_max_ms']:.0f} ms"
        for each in rows
    ]
    lines += [
        f"{each['arm']}: the sensor looks at {each['items']:,} sources that it has seen in {each['look_s']:.2f} s, "
        f"{each['list_s']:.2f} s to list them"
        for each in rows
    ]
    calls = {each["arm"]: each["api_calls_by_work"] for each in rows}
    if set(calls) == set(ARMS):
        lines.append(f"50 times the pages: {calls['pages'] / calls['sources']:.2f} times the calls of the API")
    return lines
