"""What went wrong, told apart: a dead actor, a lost payload, an exception of the program."""

from __future__ import annotations

import pickle
from collections.abc import Collection, Iterable
from typing import Any

from ray import exceptions as ray_errors

from rayorch_flows.errors import ExecutionError
from rayorch_flows.lineage.protocol import NOT_A_LIST, Column, DispatchBatch, Segment
from rayorch_flows.program.outcomes import Cause, CauseKind
from rayorch_flows.program.plan import Plan
from rayorch_flows.runtime.payloads.wire import Raised

_DIED = (
    ray_errors.RayActorError,
    ray_errors.WorkerCrashedError,
    ray_errors.NodeDiedError,
    ray_errors.OutOfMemoryError,
)
_LOST = (ray_errors.ObjectLostError, ray_errors.OwnerDiedError, ray_errors.ObjectFetchTimedOutError)


def _root(error: Any) -> Any:
    return getattr(error, "cause", None) or error if isinstance(error, ray_errors.RayTaskError) else error


def who_died(error: Any) -> str:
    """How the actor died, in a line; empty if it did not."""
    if not isinstance(error, _DIED):
        return ""
    text = str(error)
    _, told, detail = text.partition("Worker exit detail:")
    if told:
        return detail.partition("Some common causes")[0].strip()[:500]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines or [type(error).__name__])[-1][:500]


def is_lost_payload(error: Any) -> bool:
    """Whether an argument of the call, or an object to be read, is gone."""
    return isinstance(_root(error), _LOST)


def abort_error(plan: Plan, cause: Cause, raised: Raised | None) -> ExecutionError:
    """The error for a microbatch that a Call's exception stopped: Call, Entity, exception, the user's traceback."""
    call = next((call for call in plan.calls if call.name == cause.call), None)
    entity = f" at {cause.domain} {'.'.join(map(str, cause.ordinals))}" if cause.ordinals else ""
    mend = "mend the Function"
    if cause.kind is CauseKind.CONTRACT:
        mend += ": it returns a list with one value for each row (an array by .tolist()), each of which can be pickled"
    else:
        mend += ", or let its recovery policy isolate the bad rows: "
        mend += "ray_options(recovery=RecoveryPolicy.isolate_tail())"
    error = ExecutionError(
        f"Call {cause.call!r}{entity} failed ({cause.kind}): {cause.message}",
        where=str(call.where) if call is not None and call.where else "",
        next_step=mend,
    )
    if raised is not None and raised.message == cause.message:
        if raised.traceback:
            error.add_note(raised.traceback)
        if raised.pickled:
            try:
                original = pickle.loads(raised.pickled)
            except Exception:
                original = None
            if isinstance(original, BaseException):
                error.__cause__ = original
    return error


def segments_reading(batch: DispatchBatch, blocks: Collection[int]) -> list[Segment]:
    """The parts of a dispatch batch whose rows read any of these blocks."""
    lost = set(blocks)
    rows: set[int] = set()
    for column in batch.columns:
        if not lost.isdisjoint(column.blocks):
            rows.update(row for row, leaves in enumerate(_leaves(column)) if not lost.isdisjoint(leaves))
    found: list[Segment] = []
    first = 0
    for segment in batch.segments:
        if any(first <= row < first + len(segment.grains) for row in rows):
            found.append(segment)
        first += len(segment.grains)
    return found


def _leaves(column: Column) -> Iterable[list[int]]:
    """The blocks of each row of a column."""
    leaf = iter(column.blocks)
    cursors = [iter(lengths) for lengths in column.lengths]

    def read(level: int, into: list[int]) -> None:
        if level == column.depth:
            into.append(next(leaf))
            return
        length = next(cursors[level])
        if length == NOT_A_LIST:
            into.append(next(leaf))
            return
        for _ in range(length):
            read(level + 1, into)

    while True:
        row: list[int] = []
        try:
            read(0, row)
        except StopIteration:
            return
        yield row
