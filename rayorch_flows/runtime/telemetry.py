"""What an Engine tells Ray's metrics, for Prometheus to scrape; docs/metrics.md describes every one of them.

The engine's thread counts into plain integers here, and about once a second its tick has them published. Ray forgets a
gauge that is not set again within some seconds, so gauges are set every time; counters only when something happened.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ray.util import metrics as ray_metrics

from rayorch_flows.lineage.machine import Machine
from rayorch_flows.lineage.protocol import SourceResult
from rayorch_flows.program.outcomes import ItemOutcome
from rayorch_flows.program.plan import Plan

if TYPE_CHECKING:
    from rayorch_flows.runtime.pool import Pool

_log = logging.getLogger(__name__)

PERIOD_S: Final = 1.0
PREFIX: Final = "rayorch_flows_"


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric, published as ``PREFIX + name``; a counter's name ends in ``_total``, everything else is a gauge."""

    name: str
    labels: tuple[str, ...]
    help: str

    @property
    def counts(self) -> bool:
        return self.name.endswith("_total")


_HOST: Final = ("pipeline",)
_POOL: Final = (*_HOST, "pool")
_CALL: Final = (*_POOL, "call")

METRICS: Final = (
    Metric("grains_ready", _CALL, "Grains that wait for an actor"),
    Metric("grains_in_flight", _CALL, "Grains in dispatch batches that are not answered yet"),
    Metric("grains_sealed_total", (*_CALL, "outcome"), "Grains that got their outcome"),
    Metric("grains_failed_total", (*_CALL, "kind"), "Grains that failed themselves, by kind of cause"),
    Metric("grains_retried_total", _CALL, "Grains that went back after an attempt that failed"),
    Metric("batches_total", _CALL, "Dispatch batches that a Function answered or raised in"),
    Metric("batch_grains_total", _CALL, "Grains in those dispatch batches"),
    Metric("batch_limit_grains", _CALL, "Most Grains that a dispatch batch may hold"),
    Metric("busy_seconds_total", _CALL, "Time that actors spent in those dispatch batches"),
    Metric("live_bytes", _CALL, "Bytes that the Call has produced and nobody has released"),
    Metric("actors_wanted", _POOL, "Actors that the pool asks the cluster for"),
    Metric("actors_ready", _POOL, "Actors whose Function is loaded"),
    Metric("actors_busy", _POOL, "Ready actors that hold a dispatch batch"),
    Metric("microbatches_active", _HOST, "Microbatches that are running or paused"),
    Metric("microbatches_total", (*_HOST, "state"), "Microbatches that are over, by how they ended"),
    Metric("sources_done_total", (*_HOST, "outcome"), "Source items that became terminal"),
)

_LABELS: Final = {metric.name: metric.labels for metric in METRICS}

_Labels = tuple[str, ...]
_Record = Callable[[float, dict[str, str]], None]


@functools.cache
def _recorders() -> Mapping[str, _Record]:
    """Ray's side of METRICS; one for the process, whatever engines and clusters come and go in it."""
    return {metric.name: _recorder(metric) for metric in METRICS}


def _recorder(metric: Metric) -> _Record:
    name = PREFIX + metric.name
    if metric.counts:
        return ray_metrics.Counter(name, metric.help, metric.labels).inc
    return ray_metrics.Gauge(name, metric.help, metric.labels).set


class Telemetry:
    """Numbers of one engine. Used by its thread only; nothing in here raises."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._batches = [0] * len(plan.calls)
        self._grains = [0] * len(plan.calls)
        self._busy_s = [0.0] * len(plan.calls)
        self._ended: dict[str, int] = {}
        self._sources: dict[ItemOutcome, int] = {}
        self._published: dict[tuple[str, _Labels], float] = {}
        self._next = 0.0
        self._broken = False

    def batch(self, call: int, grains: int, seconds: float) -> None:
        """A dispatch batch was executed."""
        self._batches[call] += 1
        self._grains[call] += grains
        self._busy_s[call] += max(0.0, seconds)  # measured on the wall clock of the actor

    def delivered(self, results: Iterable[SourceResult]) -> None:
        """Source items became terminal."""
        sources = self._sources
        for result in results:
            for outcome in result.outcomes:
                if outcome is not ItemOutcome.PRESENT:
                    break
            else:
                outcome = ItemOutcome.PRESENT
            sources[outcome] = sources.get(outcome, 0) + 1

    def ended(self, state: str) -> None:
        """A microbatch is over."""
        self._ended[state] = self._ended.get(state, 0) + 1

    def publish(self, now: float, machine: Machine, pools: Iterable[Pool], active: int) -> None:
        """Tell Ray, if it is time. ``now`` of infinity: for the last time."""
        if now < self._next or self._broken:
            return
        self._next = now + PERIOD_S
        try:
            self._publish(machine, pools, active)
        except Exception as error:
            self._broken = True
            _log.warning("the metrics of %s are not published any more: %s", self._plan.name, error)

    def _publish(self, machine: Machine, pools: Iterable[Pool], active: int) -> None:
        host = (self._plan.name,)
        for pool in pools:
            labels = (*host, pool.module.name)
            self._set("actors_wanted", labels, pool.module.options.replicas if pool.started else 0)
            self._set("actors_ready", labels, len(pool.live))
            self._set("actors_busy", labels, sum(bool(replica.holds) for replica in pool.live))
        for call in self._plan.calls:
            module = self._plan.modules[call.module]
            labels = (*host, module.name, call.name)
            totals = machine.totals(call.id)
            self._set("grains_ready", labels, totals.ready)
            self._set("grains_in_flight", labels, totals.in_flight)
            self._set("live_bytes", labels, machine.live_bytes(call.id))
            self._set("batch_limit_grains", labels, module.options.batch_size)
            for outcome in ItemOutcome:
                self._count("grains_sealed_total", (*labels, outcome.value), getattr(totals, outcome.value))
            for kind, failed in totals.failures.items():
                self._count("grains_failed_total", (*labels, kind.value), failed)
            self._count("grains_retried_total", labels, totals.retries)
            self._count("batches_total", labels, self._batches[call.id])
            self._count("batch_grains_total", labels, self._grains[call.id])
            self._count("busy_seconds_total", labels, self._busy_s[call.id])
        self._set("microbatches_active", host, active)
        for state, count in self._ended.items():
            self._count("microbatches_total", (*host, state), count)
        for outcome, count in self._sources.items():
            self._count("sources_done_total", (*host, outcome.value), count)

    def _set(self, name: str, labels: _Labels, value: float) -> None:
        _recorders()[name](value, _labelled(name, labels))

    def _count(self, name: str, labels: _Labels, total: float) -> None:
        """Add what came since the last time; a total that is lower than it was belongs to a new machine."""
        before = self._published.get((name, labels), 0)
        if total == before:
            return
        self._published[name, labels] = total
        added = total - before if total > before else total
        if added:
            _recorders()[name](added, _labelled(name, labels))


def _labelled(name: str, labels: _Labels) -> dict[str, str]:
    """The labels of a metric by name. Ray takes ASCII only, and names of Calls need not be."""
    escaped = (label.encode("ascii", "backslashreplace").decode() for label in labels)
    return dict(zip(_LABELS[name], escaped, strict=True))
