"""What became of an ingest and of its microbatches, in numbers: flows return it, reports and ``--json`` show it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Protocol

from pydantic import BaseModel, Field


class CallFigures(Protocol):
    """The engine's measurements of one Call, as the runtime gives them."""

    @property
    def call(self) -> str: ...
    @property
    def domain(self) -> str: ...
    @property
    def grains(self) -> int: ...
    @property
    def batches(self) -> int: ...
    @property
    def batch_limit(self) -> int: ...
    @property
    def busy_s(self) -> float: ...
    @property
    def p50_s(self) -> float: ...
    @property
    def p95_s(self) -> float: ...
    @property
    def retries(self) -> int: ...
    @property
    def suppressed(self) -> int: ...
    @property
    def failed(self) -> int: ...
    @property
    def dropped(self) -> int: ...
    @property
    def sizes(self) -> dict[int, int]: ...
    @property
    def first_start_s(self) -> float: ...
    @property
    def last_end_s(self) -> float: ...


class CallSummary(BaseModel):
    """One Call. Times are in seconds since its microbatch was attached; ``sizes`` counts dispatch batches by size."""

    call: str
    domain: str = ""
    grains: int = 0
    batches: int = 0
    batch_limit: int = 1
    mean_batch: float = 0.0
    fill: float = 0.0
    busy_s: float = 0.0
    p50_s: float = 0.0
    p95_s: float = 0.0
    retries: int = 0
    suppressed: int = 0
    failed: int = 0
    dropped: int = 0
    sizes: dict[int, int] = Field(default_factory=dict[int, int])
    first_start_s: float = 0.0
    last_end_s: float = 0.0

    @classmethod
    def of(cls, figures: CallFigures) -> CallSummary:
        return merge_calls([[cls.model_validate(figures, from_attributes=True)]])[0]


class FailureLine(BaseModel):
    """One thing that failed: a source item, or one of its children (then ``ordinals`` is its path)."""

    uri: str
    cause_kind: str
    cause: str
    domain: str = ""
    ordinals: tuple[int, ...] = ()


class MicrobatchSummary(BaseModel):
    """One microbatch, as its flow run leaves it. ``staged`` parents were there before this attempt; times and Calls
    count all attempts that were made in one process. ``unavailable``: nothing of the Pipeline can run until somebody
    mends its Functions or the cluster, so other microbatches need not try."""

    microbatch: str
    flow_run_id: str = ""
    child_noun: str = "children"
    committed: bool = False
    sources: int = 0
    present: int = 0
    failed: int = 0
    dropped: int = 0
    children: int = 0
    children_failed: int = 0
    staged: int = 0
    attempts: int = 1
    elapsed_s: float = 0.0
    engine_s: float = 0.0
    causes: dict[str, int] = Field(default_factory=dict[str, int])
    failures: list[FailureLine] = Field(default_factory=list[FailureLine])
    calls: list[CallSummary] = Field(default_factory=list[CallSummary])
    error: str = ""
    unavailable: bool = False


class IngestSummary(BaseModel):
    """One ingest: sources = unchanged + present + failed + dropped + unaccounted.

    ``unchanged`` sources were in the table already; everything else counts what this run did. ``unaccounted`` ones
    belong to microbatches that could not be committed: running the same command again takes them up.
    """

    table: str
    flow: str = ""
    sources: int = 0
    unchanged: int = 0
    present: int = 0
    failed: int = 0
    dropped: int = 0
    unaccounted: int = 0
    children: int = 0
    children_failed: int = 0
    microbatches: int = 0
    microbatches_failed: int = 0
    elapsed_s: float = 0.0
    engine_s: float = 0.0
    max_failed: int | None = None
    causes: dict[str, int] = Field(default_factory=dict[str, int])
    failures: list[FailureLine] = Field(default_factory=list[FailureLine])
    calls: list[CallSummary] = Field(default_factory=list[CallSummary])
    errors: list[str] = Field(default_factory=list[str])
    flow_run_id: str = ""
    ui: str = ""

    @property
    def done(self) -> int:
        """How many sources this run put into the table."""
        return self.present + self.failed + self.dropped

    @property
    def over_budget(self) -> bool:
        return self.max_failed is not None and self.failed > self.max_failed

    def add(self, parts: Iterable[MicrobatchSummary], kept_failures: int = 50) -> None:
        """Count the microbatches in."""
        causes = Counter(self.causes)
        calls = [self.calls]
        for part in parts:
            self.microbatches += 1
            if part.committed:
                self.present += part.present
                self.failed += part.failed
                self.dropped += part.dropped
                self.children += part.children
                self.children_failed += part.children_failed
                causes.update(part.causes)
                self.failures += part.failures[: max(0, kept_failures - len(self.failures))]
            else:
                self.microbatches_failed += 1
                self.unaccounted += part.sources
                if part.error and part.error not in self.errors:
                    self.errors.append(part.error)
            self.engine_s += part.engine_s
            calls.append(part.calls)
        self.calls = merge_calls(calls)
        self.causes = dict(causes.most_common())


def merge_calls(groups: Iterable[Iterable[CallSummary]]) -> list[CallSummary]:
    """Sum the same Call over microbatches, in order of first appearance; percentiles weigh by batches."""
    merged: dict[str, CallSummary] = {}
    for group in groups:
        for call in group:
            known = merged.get(call.call)
            merged[call.call] = call.model_copy(deep=True) if known is None else _sum(known, call)
    for call in merged.values():
        if call.batches:
            call.mean_batch = round(sum(size * count for size, count in call.sizes.items()) / call.batches, 3)
            call.fill = round(call.mean_batch / max(1, call.batch_limit), 4)
    return list(merged.values())


def _sum(a: CallSummary, b: CallSummary) -> CallSummary:
    batches = a.batches + b.batches

    def weighed(x: float, y: float) -> float:
        return (x * a.batches + y * b.batches) / batches if batches else 0.0

    return CallSummary(
        call=a.call,
        domain=a.domain,
        grains=a.grains + b.grains,
        batches=batches,
        batch_limit=max(a.batch_limit, b.batch_limit),
        busy_s=a.busy_s + b.busy_s,
        p50_s=weighed(a.p50_s, b.p50_s),
        p95_s=max(a.p95_s, b.p95_s),
        retries=a.retries + b.retries,
        suppressed=a.suppressed + b.suppressed,
        failed=a.failed + b.failed,
        dropped=a.dropped + b.dropped,
        sizes=dict(sorted((Counter(a.sizes) + Counter(b.sizes)).items())),
        first_start_s=min(a.first_start_s, b.first_start_s),
        last_end_s=max(a.last_end_s, b.last_end_s),
    )
