"""One thread for each microbatch of a host: it reads terminal source items, hands them to the sink and keeps count."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from queue import Empty, SimpleQueue
from typing import Final, Protocol

from rayorch_flows.errors import Fault, RayorchFlowsError
from rayorch_flows.program.outcomes import Cause, CauseKind, ItemOutcome
from rayorch_flows.program.plan import Plan
from rayorch_flows.runtime.faults import is_lost_payload
from rayorch_flows.runtime.results import Delivery, SourceOutcome, read_delivery
from rayorch_flows.runtime.submission import End, EndState

_log = logging.getLogger(__name__)

GATHER_S: Final = 0.2
"""How long a first outcome waits for company, so that a sink writes few large pieces."""
WRITE_ATTEMPTS: Final = 4
_SAMPLE: Final = 20
_BAD = frozenset({ItemOutcome.FAILED, ItemOutcome.SUPPRESSED})


class Sink(Protocol):
    """Where a host puts terminal source items. Picklable; used by one thread. What ``write`` took is durable when
    it returns, or at the latest when ``flush`` does."""

    def done(self, microbatch: str) -> Collection[int]:
        """The rows that are durable already: those need not run again."""
        ...

    def write(self, microbatch: str, attempt: int, outcomes: Sequence[SourceOutcome]) -> None: ...

    def flush(self, microbatch: str) -> None: ...

    def close(self, microbatch: str) -> None: ...


class Counts:
    """What has become of the source items and children of one attempt so far. Written by the writer's thread."""

    def __init__(self) -> None:
        self.outcomes: Counter[ItemOutcome] = Counter()
        self.children: Counter[str] = Counter()
        self.children_failed = 0
        self.written = 0
        self.sample: tuple[tuple[int, Cause], ...] = ()

    def take(self, outcomes: Sequence[SourceOutcome]) -> None:
        for outcome in outcomes:
            self.outcomes[outcome.outcome] += 1
            for child in outcome.children:
                self.children[child.domain] += 1
                hole = child.outcome is ItemOutcome.SUPPRESSED and outcome.outcome is ItemOutcome.PRESENT
                self.children_failed += hole or child.outcome is ItemOutcome.FAILED
            if outcome.cause is not None and len(self.sample) < _SAMPLE:
                self.sample = (*self.sample, (outcome.index, outcome.cause))

    @property
    def done(self) -> int:
        return self.outcomes.total()

    @property
    def failed(self) -> int:
        return sum(self.outcomes[outcome] for outcome in _BAD)


class Writer:
    """The listener of one attempt of a microbatch.

    ``finished(state, cause)`` is called when everything is written, or cannot be; ``redo(rows)`` asks the engine for
    source items whose values were lost before they were read, and answers whether it may be asked again.
    """

    def __init__(
        self,
        plan: Plan,
        microbatch: str,
        attempt: int,
        sink: Sink | None,
        *,
        finished: Callable[[str, Cause | None], None],
        redo: Callable[[list[int]], bool],
        cancel: Callable[[], None],
    ) -> None:
        self.counts = Counts()
        self._plan = plan
        self._microbatch = microbatch
        self._attempt = attempt
        self._sink = sink
        self._finished = finished
        self._redo = redo
        self._cancel = cancel
        self._events: SimpleQueue[Delivery | End] = SimpleQueue()
        self._lost: list[int] = []
        self._failure: Cause | None = None
        threading.Thread(target=self._work, name=f"writer-{microbatch}", daemon=True).start()

    def deliver(self, delivery: Delivery) -> None:
        self._events.put(delivery)

    def ended(self, end: End) -> None:
        self._events.put(end)

    def _work(self) -> None:
        while True:
            deliveries, end = self._gather()
            outcomes = self._read(deliveries)
            if outcomes and self._failure is None:
                self._write(outcomes)
            if end is None:
                continue
            if end.state is EndState.DONE and self._lost and self._failure is None:
                lost, self._lost = self._lost, []
                if self._redo(lost):
                    continue
                self._failure = Cause(CauseKind.WORKER_CRASH, "results were lost again and again", retryable=True)
            self._finish(end)
            return

    def _gather(self) -> tuple[list[Delivery], End | None]:
        """The next event, and what comes within a moment of it."""
        deliveries: list[Delivery] = []
        event = self._events.get()
        until = time.monotonic() + GATHER_S
        while True:
            if isinstance(event, End):
                return deliveries, event
            deliveries.append(event)
            try:
                event = self._events.get(timeout=max(0.0, until - time.monotonic()))
            except Empty:
                return deliveries, None

    def _read(self, deliveries: list[Delivery]) -> list[SourceOutcome]:
        outcomes: list[SourceOutcome] = []
        for delivery in deliveries:
            try:
                outcomes += read_delivery(self._plan, delivery)
            except Exception as error:
                if is_lost_payload(error):
                    self._lost += delivery.indices
                else:
                    self._give_up(f"a result cannot be read in the engine host: {type(error).__name__}: {error}")
        return outcomes

    def _write(self, outcomes: list[SourceOutcome]) -> None:
        if self._sink is not None and not self._persist(
            lambda sink: sink.write(self._microbatch, self._attempt, outcomes)
        ):
            return
        self.counts.take(outcomes)
        self.counts.written += len(outcomes)

    def _persist(self, act: Callable[[Sink], None]) -> bool:
        """Do something with the sink, again if it fails; give the microbatch up if it fails for good."""
        assert self._sink is not None
        for attempt in range(WRITE_ATTEMPTS):
            try:
                act(self._sink)
                return True
            except Exception as error:
                _log.warning("the sink of %s failed: %s", self._microbatch, error)
                if attempt == WRITE_ATTEMPTS - 1:
                    self._give_up(f"results cannot be written: {type(error).__name__}: {error}")
                else:
                    time.sleep(0.2 * 3**attempt)
        return False

    def _give_up(self, message: str) -> None:
        if self._failure is None:
            self._failure = Cause(CauseKind.UNREADABLE, message, retryable=True)
            self._cancel()

    def _finish(self, end: End) -> None:
        if self._sink is not None and self._failure is None:
            self._persist(lambda sink: sink.flush(self._microbatch))
        if self._sink is not None:
            try:
                self._sink.close(self._microbatch)
            except Exception as error:
                _log.warning("the sink of %s did not close: %s", self._microbatch, error)
        if self._failure is not None:
            self._finished(EndState.ABORTED, self._failure)
        else:
            self._finished(end.state, end.cause or _as_cause(end.error))


def _as_cause(error: RayorchFlowsError | None) -> Cause | None:
    if error is None:
        return None
    if error.fault is Fault.INFRASTRUCTURE:
        return Cause(CauseKind.UNAVAILABLE, str(error), retryable=True)
    return Cause(CauseKind.FUNCTION_ERROR, str(error))
