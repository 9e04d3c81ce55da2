"""Executor: runs a Pipeline in this process, on actors that stay warm from run to run."""

from __future__ import annotations

import atexit
import itertools
import threading
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Self

from rayorch_flows.errors import ExecutionError, InfrastructureError
from rayorch_flows.program.plan import Plan
from rayorch_flows.runtime.engine import MAX_RESTARTS, Engine
from rayorch_flows.runtime.faults import is_lost_payload
from rayorch_flows.runtime.metrics import RunTally
from rayorch_flows.runtime.results import (
    Delivery,
    InputBatchMetrics,
    RunResult,
    SourceOutcome,
    collect,
    read_delivery,
)
from rayorch_flows.runtime.session import RaySession
from rayorch_flows.runtime.submission import End, EndState, Submission

if TYPE_CHECKING:
    from rayorch_flows.program.program import Program


def _compiled(pipeline: Any) -> Plan:
    if isinstance(pipeline, Plan):
        return pipeline
    if isinstance(pipeline, type) or not callable(getattr(pipeline, "compile", None)):
        raise TypeError(f"an Executor takes a Pipeline object, as Documents() makes it, or a Plan, not {pipeline!r}")
    return pipeline.compile()


def _check_positive(name: str, value: Any, *, optional: bool = False) -> None:
    if value is None and optional:
        return
    if type(value) is not int:
        raise TypeError(f"{name} must be a whole number, not {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be positive")


class Executor:
    """Actors of one Pipeline and the engine that feeds them.

    ``run`` and ``stream`` take row-aligned source columns, cut them into microbatches of ``input_batch_size`` rows
    (all in one by default) and keep at most ``max_active_input_batches`` of those active. One run at a time.
    """

    def __init__(
        self,
        pipeline: Program | Plan,
        *,
        address: str | None = None,
        ray_init_kwargs: dict[str, Any] | None = None,
    ) -> None:
        self.plan = _compiled(pipeline)
        self._session = RaySession(address, ray_init_kwargs)
        self._engine = Engine(self.plan)
        self._engine.warm()
        self._run: _Run | None = None
        self._lock = threading.Lock()
        self._closed = False
        self._number = itertools.count()
        atexit.register(self.close)  # before Ray's own end, which takes the engine's thread by surprise

    def run(
        self,
        *source_columns: Sequence[Any],
        input_batch_size: int | None = None,
        max_active_input_batches: int = 1,
    ) -> RunResult:
        """Run to the end. A source item without a value has an OutputIssue in its place; an exception under an
        aborting policy raises ExecutionError, and the Executor can go on with another run."""
        run = self._start(source_columns, input_batch_size, max_active_input_batches, children=False)
        outcomes: list[SourceOutcome | None] = [None] * run.rows
        for outcome in self._drive(run):
            outcomes[outcome.index] = outcome
        return RunResult(
            outputs=collect(self.plan, outcomes),
            elapsed_s=time.monotonic() - run.started,
            calls=run.tally.metrics(),
            input_batches=tuple(sorted(run.finished, key=lambda batch: batch.index)),
            peak_active_input_batches=run.peak,
            actor_count=sum(module.options.replicas for module in self.plan.modules),
        )

    def stream(
        self,
        *source_columns: Sequence[Any],
        input_batch_size: int | None = None,
        max_active_input_batches: int = 1,
    ) -> Iterator[SourceOutcome]:
        """Yield each source item's outcome as soon as it is terminal, in that order.

        A microbatch counts as active until all its outcomes have been consumed, so a slow consumer holds back the
        next ones. Closing the iterator cancels what is left.
        """
        return self._drive(self._start(source_columns, input_batch_size, max_active_input_batches))

    def cancel(self) -> None:
        """Stop the run that is under way, from another thread: it raises ExecutionError."""
        run = self._run
        if run is not None:
            run.cancelled = True
            run.events.put(None)

    def close(self) -> None:
        """Give the actors back; shut Ray down if this Executor started it."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        atexit.unregister(self.close)
        self.cancel()
        self._engine.close()
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _start(self, columns: Sequence[Sequence[Any]], size: int | None, active: int, *, children: bool = True) -> _Run:
        _check_positive("input_batch_size", size, optional=True)
        _check_positive("max_active_input_batches", active)
        if len(columns) != len(self.plan.sources):
            raise TypeError(f"{self.plan.name} takes {len(self.plan.sources)} source columns, not {len(columns)}")
        given: tuple[Any, ...] = tuple(columns)
        for number, column in enumerate(given):
            if not isinstance(column, Iterable):
                raise TypeError(f"source column {number} must be a list of rows, not {column!r}")
        owned = tuple(list(column) for column in columns)
        if len({len(column) for column in owned}) > 1:
            raise ValueError(f"source columns must be row-aligned, not of lengths {[len(c) for c in owned]}")
        with self._lock:
            self._check_free()
        return _Run(self.plan, owned, size, active, children)

    def _check_free(self) -> None:
        if self._closed:
            raise RuntimeError("Executor is closed")
        if self._run is not None:
            raise RuntimeError("Executor has a run under way; finish, close or cancel that one first")

    def _drive(self, run: _Run) -> Generator[SourceOutcome]:
        with self._lock:
            self._check_free()
            self._run = run
        run.begin()
        try:
            while True:
                while len(run.active) < run.limit and (submission := run.next_submission(next(self._number))):
                    self._engine.submit(submission)
                if not run.active:
                    return
                event = run.events.get()
                if run.cancelled:
                    raise ExecutionError("the run was cancelled")
                if isinstance(event, Delivery):
                    yield from self._read(run, event)
                elif event is not None:
                    self._ended(run, event)
        finally:
            for microbatch in run.active:
                self._engine.cancel(microbatch)
            with self._lock:
                if self._run is run:
                    self._run = None

    def _read(self, run: _Run, delivery: Delivery) -> list[SourceOutcome]:
        try:
            return read_delivery(self.plan, delivery)
        except Exception as error:
            if not is_lost_payload(error):
                raise
            run.lose(delivery, error)
            return []

    def _ended(self, run: _Run, end: End) -> None:
        submission = run.active.pop(end.microbatch)
        if end.state is EndState.ABORTED:
            assert end.error is not None
            raise end.error
        if end.state is EndState.CANCELLED:
            raise ExecutionError("the run was cancelled")
        lost = run.lost.pop(end.microbatch, None)
        if lost:
            run.active[end.microbatch] = submission
            self._engine.redo(submission, sorted(lost))
        else:
            run.finish(submission, end)


class _Run:
    """One run or stream: what is left to admit, what is active, what has come back."""

    def __init__(
        self, plan: Plan, columns: tuple[list[Any], ...], size: int | None, limit: int, children: bool
    ) -> None:
        self.rows = len(columns[0]) if columns else 0
        self.started = 0.0
        self.tally = RunTally(plan, time.time())
        self.events: SimpleQueue[Delivery | End | None] = SimpleQueue()
        self.active: dict[str, Submission] = {}
        self.lost: dict[str, list[int]] = {}
        self.finished: list[InputBatchMetrics] = []
        self.limit = limit
        self.peak = 0
        self.cancelled = False
        self._plan = plan
        self._columns = columns
        self._children = children
        self._size = size or max(1, self.rows)
        self._first = 0
        self._numbers: dict[str, int] = {}
        self._losses: dict[str, int] = {}

    def begin(self) -> None:
        self.started = time.monotonic()
        self.tally = RunTally(self._plan, time.time())

    def deliver(self, delivery: Delivery) -> None:
        self.events.put(delivery)

    def ended(self, end: End) -> None:
        self.events.put(end)

    def next_submission(self, number: int) -> Submission | None:
        first, last = self._first, min(self._first + self._size, self.rows)
        if first >= last:
            return None
        self._first = last
        columns = tuple(column[first:last] for column in self._columns)
        indices = list(range(first, last))
        submission = Submission(
            f"run-{number}", columns, indices, self, self.tally, children=self._children, last=last >= self.rows
        )
        self._numbers[submission.id] = len(self._numbers)
        self.active[submission.id] = submission
        self.peak = max(self.peak, len(self.active))
        return submission

    def lose(self, delivery: Delivery, error: Exception) -> None:
        """Values were lost before they were read: their rows run again once the microbatch is over."""
        losses = self._losses[delivery.microbatch] = self._losses.get(delivery.microbatch, 0) + 1
        if losses > MAX_RESTARTS:
            raise InfrastructureError(
                f"results were lost again and again before they could be read: {error}",
                next_step="look for nodes that leave the cluster",
            )
        first = self.active[delivery.microbatch].indices[0]
        self.lost.setdefault(delivery.microbatch, []).extend(index - first for index in delivery.indices)

    def finish(self, submission: Submission, end: End) -> None:
        number = self._numbers[submission.id]
        self.finished.append(InputBatchMetrics(number, len(submission.indices), end.grains, end.elapsed_s))


def run(
    pipeline: Program | Plan,
    *source_columns: Sequence[Any],
    input_batch_size: int | None = None,
    max_active_input_batches: int = 1,
    address: str | None = None,
    ray_init_kwargs: dict[str, Any] | None = None,
) -> RunResult:
    """Run a Pipeline once, with actors that live only for this run."""
    with Executor(pipeline, address=address, ray_init_kwargs=ray_init_kwargs) as executor:
        return executor.run(
            *source_columns,
            input_batch_size=input_batch_size,
            max_active_input_batches=max_active_input_batches,
        )
