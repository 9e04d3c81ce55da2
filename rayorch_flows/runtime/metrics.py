"""What the dispatch batches of a run have cost, by Call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from rayorch_flows.lineage.machine import CallCounts
from rayorch_flows.program.plan import CallPlan, Plan

_DURATIONS: Final = 2_048


@dataclass(frozen=True, slots=True)
class CallMetrics:
    """One Call of one run. Times are seconds; ``first_start_s`` and ``last_end_s`` since the run began.

    ``grains`` were executed and committed or failed, ``sizes`` counts dispatch batches by size, ``fill`` is their mean
    size over the limit, ``busy_s`` the time that actors spent in them; ``suppressed`` and ``dropped`` Grains never
    entered the Function.
    """

    call: str
    domain: str
    grains: int
    batches: int
    batch_limit: int
    mean_batch: float
    fill: float
    busy_s: float
    p50_s: float
    p95_s: float
    retries: int
    suppressed: int
    failed: int
    dropped: int
    sizes: dict[int, int]
    first_start_s: float
    last_end_s: float
    call_index: int = 0
    udf_name: str = ""
    actor_instances: int = 0

    @property
    def rpcs(self) -> int:
        """Dispatch batches: each is one call of an actor."""
        return self.batches

    @property
    def grain_dispatches(self) -> int:
        """Grains sent to actors, repetitions included."""
        return sum(size * count for size, count in self.sizes.items())

    @property
    def grain_requeues(self) -> int:
        return self.retries

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """The size of every dispatch batch, smallest first."""
        return tuple(size for size in sorted(self.sizes) for _ in range(self.sizes[size]))

    @property
    def average_batch(self) -> float:
        return self.mean_batch


class Durations:
    """Quantiles of a stream of durations from a bounded, evenly thinned sample. No randomness."""

    __slots__ = ("_every", "_seen", "_values")

    def __init__(self) -> None:
        self._values: list[float] = []
        self._every = 1
        self._seen = 0

    def add(self, seconds: float) -> None:
        self._seen += 1
        if self._seen % self._every:
            return
        self._values.append(seconds)
        if len(self._values) >= _DURATIONS:
            self._values = self._values[::2]
            self._every *= 2

    def quantile(self, share: float) -> float:
        if not self._values:
            return 0.0
        ordered = sorted(self._values)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@dataclass(slots=True)
class CallTally:
    """Running totals of one Call in one run."""

    busy_s: float = 0.0
    first: float = 0.0
    last: float = 0.0
    sizes: Counter[int] = field(default_factory=Counter[int])
    durations: Durations = field(default_factory=Durations)
    # Grains of microbatches that are over; the machine counts the active ones.
    grains: int = 0
    failed: int = 0
    suppressed: int = 0
    dropped: int = 0
    retries: int = 0

    def batch(self, size: int, share: float, started: float, ended: float) -> None:
        """A dispatch batch of ``size`` Grains, of which this run owns ``share``."""
        self.busy_s += (ended - started) * share
        self.sizes[size] += 1
        self.durations.add(ended - started)
        if not self.first or started < self.first:
            self.first = started
        if ended > self.last:
            self.last = ended

    def count(self, counts: CallCounts) -> None:
        """Take over the counts of a microbatch that is over."""
        self.grains += counts.sealed - counts.suppressed - counts.dropped
        self.failed += counts.failed
        self.suppressed += counts.suppressed
        self.dropped += counts.dropped
        self.retries += counts.retries


class RunTally:
    """Totals of a run: the microbatches that share it. Written by the engine's thread only."""

    def __init__(self, plan: Plan, started: float) -> None:
        self.calls = [CallTally() for _ in plan.calls]
        self._plan = plan
        self._started = started

    def finish(self, counts: Iterable[CallCounts]) -> None:
        for tally, call in zip(self.calls, counts, strict=True):
            tally.count(call)

    def metrics(self, active: Iterable[list[CallCounts]] = ()) -> tuple[CallMetrics, ...]:
        """Metrics of every Call; ``active`` are the counts of microbatches that are still running."""
        running = list(active)
        return tuple(
            self._call(call, self.calls[call.id], [counts[call.id] for counts in running]) for call in self._plan.calls
        )

    def _call(self, call: CallPlan, tally: CallTally, active: list[CallCounts]) -> CallMetrics:
        module = self._plan.modules[call.module]
        batches = sum(tally.sizes.values())
        dispatched = sum(size * count for size, count in tally.sizes.items())
        mean = dispatched / batches if batches else 0.0
        limit = module.options.batch_size
        total = CallTally(
            grains=tally.grains,
            failed=tally.failed,
            suppressed=tally.suppressed,
            dropped=tally.dropped,
            retries=tally.retries,
        )
        for counts in active:
            total.count(counts)
        return CallMetrics(
            call=call.name,
            domain=self._plan.domains[call.domain].name,
            grains=total.grains,
            batches=batches,
            batch_limit=limit,
            mean_batch=mean,
            fill=mean / limit,
            busy_s=tally.busy_s,
            p50_s=tally.durations.quantile(0.5),
            p95_s=tally.durations.quantile(0.95),
            retries=total.retries,
            suppressed=total.suppressed,
            failed=total.failed,
            dropped=total.dropped,
            sizes=dict(sorted(tally.sizes.items())),
            first_start_s=max(0.0, tally.first - self._started) if tally.first else 0.0,
            last_end_s=max(0.0, tally.last - self._started) if tally.last else 0.0,
            call_index=call.id,
            udf_name=getattr(module.function, "__name__", type(module.function).__name__),
            actor_instances=module.options.replicas,
        )
