"""The driver loop: the machine decides, the pools execute, the block table holds the payloads in between.

One thread owns all three. Everything that happens (a reply of an actor, a new microbatch, a cancellation) reaches it as
a message; it takes all messages that are waiting, feeds the machine, carries out what the machine asks for, and fills
up the actors. Payloads pass by as bytes or references and are never unpickled here.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Final

from rayorch_flows.errors import ExecutionError, InfrastructureError, RayorchFlowsError
from rayorch_flows.lineage.machine import CallCounts
from rayorch_flows.lineage.protocol import (
    AttemptFailure,
    BlocksReleased,
    MicrobatchAborted,
    MicrobatchDone,
    SourceTerminal,
)
from rayorch_flows.program.outcomes import Cause, CauseKind
from rayorch_flows.program.plan import Plan
from rayorch_flows.runtime.faults import abort_error
from rayorch_flows.runtime.payloads.contract import ContractError
from rayorch_flows.runtime.results import Delivery
from rayorch_flows.runtime.submission import Active, End, EndState, Submission
from rayorch_flows.runtime.telemetry import Telemetry
from rayorch_flows.runtime.traffic import Traffic

_log = logging.getLogger(__name__)

PLACEMENT_TIMEOUT_S: Final = 60.0
MAX_RESTARTS: Final = 3
"""Attempts of one microbatch that may be lost with a payload before it is given up."""
MAX_FAILURES: Final = 3
"""Turns of the loop that may fail one after the other before the engine takes no more work."""
_TICK_S: Final = 0.25
_TURN: Final = 64


class Engine:
    """Runs any number of microbatches of one Plan on actor pools that stay warm in between."""

    def __init__(
        self,
        plan: Plan,
        *,
        placement_timeout_s: float = PLACEMENT_TIMEOUT_S,
        idle_s: float | None = None,
        validate: bool | None = None,
    ) -> None:
        self.plan = plan
        self._messages: SimpleQueue[tuple[Callable[..., None], Any, Any]] = SimpleQueue()
        self._taken: deque[tuple[Callable[..., None], Any, Any]] = deque()
        self._active: dict[str, Active] = {}
        self._telemetry = Telemetry(plan)
        self._traffic = Traffic(
            plan,
            self._active,
            self._post,
            placement_timeout_s=placement_timeout_s,
            telemetry=self._telemetry,
            restart=self._restart,
        )
        self._idle_s = idle_s
        self._validate = bool(os.environ.get("RAYORCH_FLOWS_VALIDATE")) if validate is None else validate
        self._draining = False
        self._closing = False
        self._last_active = time.monotonic()
        self._next_tick = 0.0
        self._thread = threading.Thread(target=self._loop, name=f"engine-{plan.name}", daemon=True)
        self._thread.start()

    # What other threads may call

    def submit(self, submission: Submission) -> None:
        """Start a microbatch. Its listener hears of every terminal source item, then of the end."""
        self._post(self._on_submit, submission, None)

    def redo(self, submission: Submission, positions: list[int]) -> None:
        """Run these rows of a microbatch again, whose delivered values were lost before they were read."""
        self._post(self._on_redo, submission, positions)

    def cancel(self, microbatch: str) -> None:
        """Forget a microbatch; nothing of it is dispatched any more. Its listener hears of the end."""
        self._post(self._on_cancel, microbatch, None)

    def pause(self, microbatch: str, paused: bool) -> None:
        """Stop or go on dispatching a microbatch."""
        self._post(self._on_pause, microbatch, paused)

    def warm(self) -> None:
        """Start the actors of every pool now, and not with the first microbatch."""
        self._post(self._on_warm, None, None)

    def drain(self) -> None:
        """Give the actors of each pool back as soon as no active microbatch can need them any more."""
        self._post(self._on_drain, None, None)

    def close(self, timeout_s: float = 30.0) -> None:
        """Cancel what is active, kill the actors, end the thread."""
        if self._thread.is_alive():
            self._post(self._on_close, None, None)
            self._thread.join(timeout_s)

    def actors(self) -> list[dict[str, Any]]:
        """Every pool's actors as this moment shows them: module, pid, node, whether ready, batches in flight."""
        return [
            {"module": pool.module.name, "pid": r.pid, "node": r.node, "ready": r.ready, "in_flight": r.holds}
            for pool in self._traffic.pools
            for r in pool.everyone()
        ]

    def _post(self, handler: Callable[..., None], subject: Any, value: Any) -> None:
        self._messages.put((handler, subject, value))

    # The loop

    def _loop(self) -> None:
        failures = 0
        while not self._closing:
            try:
                self._turn()
                failures = 0
            except Exception as error:
                failures += 1
                _log.exception("the engine of %s failed", self.plan.name)
                self._start_over(error)
                if failures == MAX_FAILURES:
                    self._refuse(error)

    def _start_over(self, error: Exception) -> None:
        """A defect: everything that was active ends with it, and the next microbatch finds an engine without state."""
        self._end_all(_defect(error))
        self._traffic.start_over()

    def _refuse(self, error: Exception) -> None:
        """A defect that does not go away: answer every microbatch with it until the engine is closed."""
        while not self._closing:
            handler, subject, value = self._taken.popleft() if self._taken else self._messages.get()
            if handler in (self._on_submit, self._on_redo):
                subject.listener.ended(End(subject.id, EndState.ABORTED, _defect(error), None, 0, 0.0))
            elif handler == self._on_close:
                handler(subject, value)

    def _turn(self) -> None:
        self._take_messages()
        while self._taken:  # what is behind a message that fails is handled in the next turn
            handler, subject, value = self._taken.popleft()
            handler(subject, value)
        now = time.monotonic()
        if now >= self._next_tick:
            self._next_tick = now + _TICK_S
            self._tick(now)
        if self._traffic.timed:
            self._traffic.check_deadlines(now)
        self._apply()
        if self._active:
            self._traffic.dispatch()
            self._apply()
        if self._validate:
            self._traffic.machine.validate()

    def _take_messages(self) -> None:
        """Wait for a message, or for what the clock asks, and take those that are there."""
        if self._taken:
            return
        now = time.monotonic()
        wake = self._next_tick
        for pool in self._traffic.timed:
            deadline = pool.next_deadline()
            if deadline is not None and deadline < wake:
                wake = deadline
        messages, taken = self._messages, self._taken
        try:
            taken.append(messages.get(timeout=max(0.0, wake - now)))
            while len(taken) < _TURN:
                taken.append(messages.get_nowait())
        except Empty:
            pass

    def _apply(self) -> None:
        """Carry out what the machine asks for, until it asks for nothing."""
        machine = self._traffic.machine
        while instructions := machine.instructions():
            for instruction in instructions:
                match instruction:
                    case BlocksReleased(blocks):
                        self._traffic.blocks.release(blocks)
                    case SourceTerminal(microbatch, rows):
                        self._deliver(self._active[microbatch], rows)
                    case MicrobatchDone(microbatch):
                        self._end(self._active[microbatch], EndState.DONE)
                    case MicrobatchAborted(microbatch, cause):
                        active = self._active[microbatch]
                        error = abort_error(self.plan, cause, active.raised)
                        self._end(active, EndState.ABORTED, error, cause)

    # Microbatches

    def _on_submit(self, submission: Submission, _: None) -> None:
        active = Active(submission, submission.attempt, list(range(len(submission.indices))), time.monotonic())
        self._admit(active)

    def _on_redo(self, submission: Submission, positions: list[int]) -> None:
        active = Active(submission, submission.attempt + 1, positions, time.monotonic())
        submission.attempt += 1
        self._admit(active)

    def _admit(self, active: Active) -> None:
        submission = active.submission
        if submission.id in self._active:
            error = ExecutionError(f"microbatch {submission.id} is already active", next_step="cancel it first")
            submission.listener.ended(End(submission.id, EndState.ABORTED, error, None, 0, 0.0))
            return
        self._active[submission.id] = active
        try:
            self._on_warm(None, None)
            active.open = set(range(len(active.rows)))
            whole = len(active.rows) == len(submission.indices)
            chosen = [c if whole else [c[row] for row in active.rows] for c in submission.columns]
            columns = self._traffic.blocks.store_sources(self.plan, chosen)
            self._traffic.machine.draining = submission.last
            self._traffic.machine.admit(submission.id, active.attempt, len(active.rows), columns)
        except (ContractError, RayorchFlowsError) as error:
            known = error if isinstance(error, RayorchFlowsError) else ExecutionError(str(error))
            self._end(active, EndState.ABORTED, known)

    def _on_warm(self, _: None, __: None) -> None:
        self._last_active = time.monotonic()
        for pool in self._traffic.pools:
            if pool.failure is not None or not pool.started:
                pool.start()

    def _on_cancel(self, microbatch: str, _: None) -> None:
        if active := self._active.get(microbatch):
            self._traffic.machine.cancel(microbatch)
            self._end(active, EndState.CANCELLED)

    def _on_pause(self, microbatch: str, paused: bool) -> None:
        if microbatch in self._active:
            self._traffic.machine.pause(microbatch, paused=paused)

    def _deliver(self, active: Active, rows: list[int]) -> None:
        submission = active.submission
        machine = self._traffic.machine
        results = [machine.result(submission.id, row, children=submission.children) for row in rows]
        active.open.difference_update(rows)
        self._telemetry.delivered(results)
        needed: dict[int, None] = {}
        for result in results:
            for column in result.columns:
                if column is not None:
                    needed.update(dict.fromkeys(column.blocks))
        if not active.open:
            self._take_counts(active)
        indices = [submission.indices[active.rows[row]] for row in rows]
        submission.listener.deliver(Delivery(submission.id, indices, results, self._traffic.blocks.subset(needed)))
        for row in rows:
            machine.taken(submission.id, row)

    def _counts(self, microbatch: str) -> list[CallCounts]:
        return [self._traffic.machine.counts(microbatch, call.id) for call in self.plan.calls]

    def _take_counts(self, active: Active) -> None:
        counts = self._counts(active.submission.id)
        active.grains += sum(count.sealed for count in counts)
        tally = active.submission.tally
        tally.finish(counts)
        if active.submission.watched:
            active.submission.snapshot = tally.metrics()

    def _end(
        self, active: Active, state: EndState, error: RayorchFlowsError | None = None, cause: Cause | None = None
    ) -> None:
        submission = active.submission
        del self._active[submission.id]
        self._last_active = time.monotonic()
        elapsed = time.monotonic() - active.started
        self._telemetry.ended(state)
        submission.listener.ended(End(submission.id, state, error, cause, active.grains, elapsed))

    def _end_all(self, error: RayorchFlowsError | None, cause: Cause | None = None) -> None:
        state = EndState.CANCELLED if error is None else EndState.ABORTED
        for active in list(self._active.values()):
            self._traffic.machine.cancel(active.submission.id)
            self._end(active, state, error, cause)

    def _restart(self, active: Active) -> None:
        submission = active.submission
        self._traffic.machine.cancel(submission.id)
        if active.restarts >= MAX_RESTARTS:
            error = InfrastructureError(
                f"microbatch {submission.id} lost payloads to dead nodes in {MAX_RESTARTS + 1} attempts",
                next_step="look for nodes that leave the cluster, then run it again",
            )
            self._end(active, EndState.ABORTED, error)
            return
        del self._active[submission.id]
        submission.attempt += 1
        rows = [active.rows[row] for row in sorted(active.open)]
        self._admit(
            Active(
                submission, submission.attempt, rows, active.started, restarts=active.restarts + 1, grains=active.grains
            )
        )

    # From time to time

    def _tick(self, now: float) -> None:
        for pool in self._traffic.pools:
            for replica in pool.dead():
                if replica.flights:
                    continue  # its calls come back with the error, in order
                self._traffic.lose(replica, AttemptFailure.WORKER_DIED, "its worker died")
            pool.check_placement(now)
            if pool.failure is not None and self._active:
                self._end_all(pool.failure, Cause(CauseKind.UNAVAILABLE, str(pool.failure), pool.module.name))
        for active in self._active.values():
            if active.submission.watched:
                counts = self._counts(active.submission.id)
                active.submission.snapshot = active.submission.tally.metrics([counts])
        if self._active:
            self._last_active = now
            if self._draining:
                self._give_back()
        elif self._draining or (self._idle_s is not None and now - self._last_active > self._idle_s):
            for pool in self._traffic.pools:
                self._traffic.stop(pool)
        self._telemetry.publish(now, self._traffic.machine, self._traffic.pools, len(self._active))

    def _on_drain(self, _: None, __: None) -> None:
        self._draining = True

    def _give_back(self) -> None:
        """Stop the pools whose Calls, and all Calls upstream of them, have nothing left to do."""
        busy = {
            call.id
            for microbatch in self._active
            for call, counts in zip(self.plan.calls, self._counts(microbatch), strict=True)
            if counts.waiting or counts.ready or counts.in_flight
        }
        upstream = self._traffic.machine.index.upstream
        for pool in self._traffic.pools:
            calls = [call.id for call in self.plan.calls if call.module == pool.module.id]
            if pool.started and not any(call in busy or upstream[call] & busy for call in calls):
                self._traffic.stop(pool)

    def _on_close(self, _: None, __: None) -> None:
        self._closing = True
        self._end_all(None)
        for pool in self._traffic.pools:
            pool.stop()
        self._telemetry.publish(math.inf, self._traffic.machine, self._traffic.pools, 0)


def _defect(error: Exception) -> InfrastructureError:
    return InfrastructureError(
        f"the engine failed: {type(error).__name__}: {error}",
        next_step="report it with the log; the microbatch can be run again",
    )
