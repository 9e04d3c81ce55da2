"""What a run gives back: values where an Item is Present, the outcome and its cause where it is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray

from rayorch_flows.lineage.protocol import ChildOutcome, Lost, SourceResult
from rayorch_flows.program.outcomes import Cause, CauseKind, ItemOutcome
from rayorch_flows.program.plan import ROOT, Layout, OutputShape, Plan
from rayorch_flows.runtime.metrics import CallMetrics
from rayorch_flows.runtime.payloads.codec import decode_column, open_block

__all__ = ["CallMetrics", "InputBatchMetrics", "OutputIssue", "RunResult", "SourceOutcome"]


@dataclass(frozen=True, slots=True)
class OutputIssue:
    """Stands in the outputs where a source item has no value."""

    outcome: ItemOutcome
    cause: str | None = None


@dataclass(frozen=True, slots=True)
class SourceOutcome:
    """A terminal source item. ``value`` is what the Pipeline returned for it: the value, or a tuple of them.

    With several outputs ``outcome`` is PRESENT only if all of them are, else that of the first one which is not;
    ``outputs`` has one entry for each output in any case: the value, or an OutputIssue.
    """

    index: int
    outcome: ItemOutcome
    value: Any
    cause: Cause | None
    children: tuple[ChildOutcome, ...] = ()
    outputs: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class InputBatchMetrics:
    """One microbatch of a run: its number, its source items, its Grains and how long it was active."""

    index: int
    rows: int
    grain_count: int
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class RunResult:
    """Outputs in the order of the source items, and what it took.

    ``outputs`` is a list for a Pipeline that returns one Port, a tuple of lists, nested alike, for one that returns
    several. An output of a child Domain is one flat list over all source items.
    """

    outputs: Any
    elapsed_s: float
    calls: tuple[CallMetrics, ...]
    input_batches: tuple[InputBatchMetrics, ...]
    peak_active_input_batches: int
    actor_count: int

    @property
    def rpc_count(self) -> int:
        """Dispatch batches: as many as calls of actors, but for very short ones, which share some."""
        return sum(call.batches for call in self.calls)


@dataclass(frozen=True, slots=True)
class Delivery:
    """Terminal source items on their way out of the engine: the machine's results, the original index of each, and
    the payloads that they need, which stay alive as long as this does."""

    microbatch: str
    indices: list[int]
    results: list[SourceResult]
    payloads: dict[int, Any]


def read_delivery(plan: Plan, delivery: Delivery) -> list[SourceOutcome]:
    """Fetch and decode the values. Large arrays are copied, so that they outlive the object store."""
    references = [payload for payload in delivery.payloads.values() if type(payload) is not bytes]
    fetched = dict(zip(references, ray.get(references), strict=True)) if references else {}
    opened: dict[int, Any] = {
        block: open_block(payload if type(payload) is bytes else fetched[payload], copy=True)
        for block, payload in delivery.payloads.items()
    }
    return [
        _outcome(plan, index, result, opened) for index, result in zip(delivery.indices, delivery.results, strict=True)
    ]


def _outcome(plan: Plan, index: int, result: SourceResult, opened: dict[int, Any]) -> SourceOutcome:
    outputs: list[Any] = []
    outcome, cause = ItemOutcome.PRESENT, None
    for port, item, item_cause, column in zip(
        plan.outputs, result.outcomes, result.causes, result.columns, strict=True
    ):
        if column is not None:
            try:
                value = decode_column(column, opened, 1)[0]
            except Exception as error:
                # What loads in a worker may not load here; it must not take other source items along.
                item_cause = _unreadable(plan, port, error)
                outputs.append(_issue_of(ItemOutcome.FAILED, item_cause))
                if outcome is ItemOutcome.PRESENT:
                    outcome, cause = ItemOutcome.FAILED, item_cause
                continue
            below_root = plan.ports[port].domain != ROOT
            outputs.append(
                [_issue_of(v.outcome, v.cause) if type(v) is Lost else v for v in value] if below_root else value
            )
            continue
        outputs.append(_issue_of(item, item_cause))
        if outcome is ItemOutcome.PRESENT:
            outcome, cause = item, item_cause
    value = None
    if outcome is ItemOutcome.PRESENT:
        value = outputs[0] if plan.shape is OutputShape.SINGLE else tuple(outputs)
    return SourceOutcome(index, outcome, value, cause, result.children, tuple(outputs))


def _unreadable(plan: Plan, port: int, error: Exception) -> Cause:
    made = next((call for call in plan.calls if port in call.outputs), None)
    message = (
        f"output {plan.ports[port].name!r} holds a value that cannot be loaded where results are read: "
        f"{type(error).__name__}: {error}; return plain values, or install what they need there"
    )
    return Cause(CauseKind.CONTRACT, message, made.name if made else "")


def _issue_of(outcome: ItemOutcome, cause: Cause | None) -> OutputIssue:
    return OutputIssue(outcome, cause.message if cause else None)


def collect(plan: Plan, outcomes: Sequence[SourceOutcome | None]) -> Any:
    """The outputs of a run from the outcomes of all its source items, in order and nested as ``forward`` returned them.

    An output of the root Domain has one entry a source item; one of a child Domain has its Items of all source items.
    """
    columns: list[list[Any]] = []
    for index, port in enumerate(plan.outputs):
        entries = [outcome.outputs[index] for outcome in outcomes if outcome]
        columns.append(entries if plan.ports[port].domain == ROOT else [item for items in entries for item in items])
    return _nest(plan.layout, columns)


def _nest(layout: Layout, columns: list[list[Any]]) -> Any:
    if isinstance(layout, int):
        return columns[layout]
    return tuple(_nest(part, columns) for part in layout)
