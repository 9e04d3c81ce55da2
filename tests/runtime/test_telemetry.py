"""Metrics: docs/metrics.md lists what a scrape of Ray's endpoint finds, and the numbers are those of the run."""

from __future__ import annotations

import math
import re
import time
import urllib.request
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rayorch_flows import Executor, RayModule, RecoveryPolicy
from rayorch_flows.lineage.machine import Machine
from rayorch_flows.runtime import telemetry
from rayorch_flows.runtime.telemetry import METRICS, PERIOD_S, PREFIX, Telemetry
from tests.lineage.scripted import program
from tests.properties.programs import Call, Source
from tests.runtime.functions import CPU, Documents, Flat, Poison, Slow

PAGE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
RAYS_PREFIX = "ray_"
Labels = tuple[tuple[str, str], ...]


# -- The page --------------------------------------------------------------------------------------------------------


def documented() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Type and labels of every metric in the table, by name."""
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| ([\w, ]+) \| .+ \|$", PAGE.read_text(), re.M)
    return {name: (kind, tuple(labels.split(", "))) for name, kind, labels in rows}


def test_the_page_lists_every_metric_with_its_type_and_labels() -> None:
    expected = {
        RAYS_PREFIX + PREFIX + metric.name: ("counter" if metric.counts else "gauge", metric.labels)
        for metric in METRICS
    }
    assert documented() == expected


def test_every_query_uses_metrics_and_labels_that_there_are() -> None:
    metrics = documented()
    queries = re.findall(r"^```promql\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    used: set[str] = set()
    for query in queries:
        names = re.findall(rf"{RAYS_PREFIX}{PREFIX}\w+", query)
        assert names, query
        assert set(names) <= metrics.keys(), query
        assert query.count("(") == query.count(")"), query
        used.update(names)
        for grouped, name, selected in re.findall(r"by \(([\w, ]+)\) \(.*?(ray_\w+)(?:\{(.*?)\})?", query):
            assert {*grouped.split(", "), *re.findall(r"(\w+)=", selected)} <= set(metrics[name][1]), query
        for name, window in re.findall(r"(ray_\w+)(?:\{.*?\})?(\[\w+\])?", query):
            averaged = f"avg_over_time({name}" in query
            assert bool(window) == (metrics[name][0] == "counter" or averaged), query
    assert used == metrics.keys(), "a metric without a query"


# -- Without Ray -----------------------------------------------------------------------------------------------------


class Recorded:
    """Takes what would go to Ray."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gauges: dict[tuple[str, Labels], float] = {}
        self.counters: dict[tuple[str, Labels], float] = {}
        self.increments: list[float] = []
        monkeypatch.setattr(telemetry, "_recorders", lambda: {metric.name: self.recorder(metric) for metric in METRICS})

    def recorder(self, metric: telemetry.Metric) -> Callable[[float, dict[str, str]], None]:
        def record(value: float, tags: dict[str, str]) -> None:
            assert tuple(tags) == metric.labels
            key = metric.name, tuple(tags.items())
            if metric.counts:
                assert value > 0
                self.increments.append(value)
                self.counters[key] = self.counters.get(key, 0) + value
            else:
                self.gauges[key] = value

        return record

    def counter(self, name: str, **labels: str) -> float:
        return self.counters.get((name, tuple(labels.items())), 0)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    return Recorded(monkeypatch)


PLAN = program(Source(), Call(0, ((0, False),), ("value",)), outputs=[1])
HERE = {"pipeline": PLAN.name, "pool": PLAN.modules[0].name, "call": PLAN.calls[0].name}


def test_nothing_new_counts_nothing_and_gauges_are_set_again(recorded: Recorded) -> None:
    told, machine = Telemetry(PLAN), Machine(PLAN)
    told.batch(0, 3, 0.5)
    told.publish(0.0, machine, (), 1)
    assert recorded.counter("batches_total", **HERE) == 1
    assert recorded.counter("batch_grains_total", **HERE) == 3
    assert recorded.counter("busy_seconds_total", **HERE) == 0.5
    before = len(recorded.increments)
    recorded.gauges.clear()
    told.publish(PERIOD_S, machine, (), 1)
    assert len(recorded.increments) == before
    assert recorded.gauges["microbatches_active", (("pipeline", PLAN.name),)] == 1


def test_names_in_other_alphabets_are_escaped(recorded: Recorded) -> None:
    plan = replace(PLAN, name="größe")
    told = Telemetry(plan)
    told.batch(0, 3, 0.5)
    told.publish(0.0, Machine(plan), (), 1)
    assert recorded.counter("batches_total", **{**HERE, "pipeline": r"gr\xf6\xdfe"}) == 1


def test_it_publishes_once_in_a_period_and_a_last_time_at_the_end(recorded: Recorded) -> None:
    told, machine = Telemetry(PLAN), Machine(PLAN)
    for now, seen in ((0.0, 1), (PERIOD_S / 2, 1), (PERIOD_S, 3), (math.inf, 4), (math.inf, 5)):
        told.batch(0, 1, 0.1)
        told.publish(now, machine, (), 0)
        assert recorded.counter("batches_total", **HERE) == seen


def test_a_new_machine_does_not_take_anything_back(recorded: Recorded) -> None:
    told = Telemetry(PLAN)
    for sealed, seen in ((5, 5), (2, 7), (3, 8), (0, 8), (1, 9)):
        told._count("grains_retried_total", tuple(HERE.values()), sealed)
        assert recorded.counter("grains_retried_total", **HERE) == seen


def test_a_clock_that_jumps_back_takes_nothing_back(recorded: Recorded) -> None:
    told = Telemetry(PLAN)
    told.batch(0, 1, 2.0)
    told.batch(0, 1, -3600.0)
    told.publish(0.0, Machine(PLAN), (), 0)
    assert recorded.counter("busy_seconds_total", **HERE) == 2.0


def test_metrics_that_fail_are_given_up_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> Any:
        raise RuntimeError("no metrics here")

    monkeypatch.setattr(telemetry, "_recorders", broken)
    told = Telemetry(PLAN)
    for now in range(3):
        told.batch(0, 1, 1.0)
        told.publish(float(now) * PERIOD_S, Machine(PLAN), (), 0)
    assert [record.getMessage() for record in caplog.records] == [
        f"the metrics of {PLAN.name} are not published any more: no metrics here"
    ]


# -- Scraped ---------------------------------------------------------------------------------------------------------


class Scrape:
    """What the endpoint shows of one pipeline: name and our labels (less the pipeline) to value."""

    def __init__(self, pipeline: str) -> None:
        import ray
        from prometheus_client.parser import text_string_to_metric_families

        self.values: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        self.types: dict[str, str] = {}
        self.publishers: set[str] = set()
        for node in ray.nodes():
            url = f"http://127.0.0.1:{node['MetricsExportPort']}/metrics"
            with urllib.request.urlopen(url, timeout=10) as answer:
                text = answer.read().decode()
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    if sample.name.startswith(RAYS_PREFIX + PREFIX) and sample.labels.get("pipeline") == pipeline:
                        metric = sample.name.removeprefix(RAYS_PREFIX + PREFIX)
                        ours = documented()[sample.name][1][1:]
                        self.values[metric, frozenset((label, sample.labels[label]) for label in ours)] = sample.value
                        self.types[sample.name] = family.type
                        self.publishers.add(sample.labels["WorkerId"])

    def get(self, metric: str, **labels: str) -> float:
        return self.values.get((metric, frozenset(labels.items())), 0.0)


def scrape_until(pipeline: str, true: Callable[[Scrape], bool], timeout_s: float = 120.0) -> Scrape:
    """Scrape until it holds; Ray reports every ten seconds."""
    until = time.monotonic() + timeout_s
    seen: Any = None
    while time.monotonic() < until:
        try:
            found = Scrape(pipeline)
            if true(found):
                return found
            seen = found.values
        except OSError as error:  # no answer in time
            seen = error
        time.sleep(0.5)
    raise AssertionError(seen)


class MeteredLocally(Documents):
    """A name of its own, so that no other test's numbers are in it."""


class MeteredInAHost(Documents):
    """The same for the host."""


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_a_scrape_finds_exactly_the_documented_metrics_and_the_numbers_of_the_run() -> None:
    middle = RayModule(Poison).pre_init(1, "raise")
    middle.ray_options(batch_size=4, replicas=2, recovery=RecoveryPolicy.isolate_tail(), **CPU)
    with Executor(MeteredLocally(middle)) as executor:
        result = executor.run([3, 2, -1, 0], input_batch_size=2)
        found = scrape_until(
            "MeteredLocally",
            lambda s: (
                s.get("microbatches_total", state="done") == 2
                and s.get("sources_done_total", outcome="suppressed") == 3  # told last
                and s.get("actors_ready", pool="middle") == 2  # one is enough for the run
            ),
        )
    pages, work, total = ({"pool": call.call, "call": call.call} for call in result.calls)

    assert found.types == {name: kind for name, (kind, _) in documented().items()}
    sealed = {
        (call["call"], outcome): found.get("grains_sealed_total", **call, outcome=outcome)
        for call in (pages, work, total)
        for outcome in ("present", "failed", "suppressed", "dropped")
    }
    assert {key: count for key, count in sealed.items() if count} == {
        ("pages", "present"): 3,
        ("pages", "failed"): 1,
        ("middle", "present"): 3,
        ("middle", "failed"): 2,
        ("total", "present"): 1,
        ("total", "suppressed"): 3,
    }
    assert found.get("grains_failed_total", **pages, kind="function_error") == 1
    assert found.get("grains_failed_total", **work, kind="function_error") == 2
    for labels, call in zip((pages, work, total), result.calls, strict=True):
        assert found.get("grains_retried_total", **labels) == call.retries
        assert found.get("batches_total", **labels) == call.batches
        assert found.get("batch_grains_total", **labels) == call.grain_dispatches
        assert found.get("busy_seconds_total", **labels) == pytest.approx(call.busy_s)
        assert found.get("batch_limit_grains", **labels) == call.batch_limit
        assert found.get("live_bytes", **labels) == found.get("grains_ready", **labels) == 0
    assert result.calls[1].retries > 0
    assert found.get("actors_wanted", pool="middle") == found.get("actors_ready", pool="middle") == 2
    assert found.get("sources_done_total", outcome="present") == 1
    assert found.get("sources_done_total", outcome="suppressed") == 3
    assert found.get("microbatches_active") == 0


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_an_engine_host_publishes_what_is_going_on_and_what_was_cancelled() -> None:
    import ray

    from rayorch_flows.runtime.host import client as host
    from rayorch_flows.runtime.host.client import MicrobatchSpec

    middle = RayModule(Slow).pre_init(0.5).ray_options(batch_size=4, replicas=2, slow_start=False, **CPU)
    client = host.connect(MeteredInAHost(middle).compile(), namespace=f"test-{uuid.uuid4().hex[:8]}")
    work = {"pool": "middle", "call": "middle"}

    def busy(scrape: Scrape) -> bool:
        client.poll("endless", 0.0)  # or it is paused
        return scrape.get("actors_busy", pool="middle") == 2 and scrape.get("batches_total", **work) > 0

    try:
        client.attach(MicrobatchSpec("endless", ([100_000],), [0]))  # hours
        during = scrape_until("MeteredInAHost", busy)
        assert 90_000 < during.get("grains_ready", **work) < 100_000
        assert 2 * 4 <= during.get("grains_in_flight", **work) <= 2 * 2 * 4
        assert during.get("live_bytes", pool="pages", call="pages") > 10_000
        assert during.get("microbatches_active") == 1
        assert during.publishers != {ray.get_runtime_context().get_worker_id()}
        client.cancel("endless")
        after = scrape_until("MeteredInAHost", lambda s: s.get("microbatches_total", state="cancelled") == 1)
        assert after.get("grains_sealed_total", **work, outcome="present") >= during.get("batch_grains_total", **work)
        assert after.get("grains_ready", **work) == after.get("live_bytes", pool="pages", call="pages") == 0
        assert after.get("microbatches_active") == 0
    finally:
        client.stop()


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_an_engine_runs_on_when_metrics_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Any:
        raise RuntimeError("no metrics here")

    monkeypatch.setattr(telemetry, "_recorders", broken)
    with Executor(Flat(RayModule(Slow).pre_init(0.3).ray_options(**CPU))) as executor:
        assert executor.run([1, 2, 3, 4, 5]).outputs == [2, 3, 4, 5, 6]
