"""Dispatch batches out to actors, their replies in: what happens between a reservation and its commit."""

from __future__ import annotations

import functools
import logging
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rayorch_flows.lineage.machine import Machine
from rayorch_flows.lineage.protocol import (
    AttemptFailure,
    BatchReport,
    Block,
    DispatchBatch,
    OutputReport,
    RowFailure,
)
from rayorch_flows.program.outcomes import Cause, CauseKind
from rayorch_flows.program.plan import Plan
from rayorch_flows.runtime.blocks import BlockTable, SlotPolicy
from rayorch_flows.runtime.cost import BatchCost
from rayorch_flows.runtime.faults import is_lost_payload, segments_reading, who_died
from rayorch_flows.runtime.metrics import RunTally
from rayorch_flows.runtime.pool import Flight, Pool, Post, Replica
from rayorch_flows.runtime.submission import Active
from rayorch_flows.runtime.telemetry import Telemetry
from rayorch_flows.runtime.wire import OK, Piece, Raised, module_calls, pack_request

_log = logging.getLogger(__name__)


class Traffic:
    """Feeds a machine's actors and takes their answers. Used by the engine's thread only.

    ``active`` are the engine's microbatches; ``restart`` is called for one whose payloads were lost.
    """

    def __init__(
        self,
        plan: Plan,
        active: Mapping[str, Active],
        post: Post,
        *,
        placement_timeout_s: float,
        telemetry: Telemetry,
        restart: Callable[[Active], None],
    ) -> None:
        self._plan = plan
        self._active = active
        self._post = post
        self._telemetry = telemetry
        self._restart = restart
        calls = [module_calls(plan, module) for module in plan.modules]
        self.pools = [
            Pool(module, calls[module.id], post, placement_timeout_s=placement_timeout_s) for module in plan.modules
        ]
        self.timed = [pool for pool in self.pools if pool.deadline_s is not None]
        self._slots = {call.id: SlotPolicy(call.streams) for module in calls for call in module}
        self._costs = [BatchCost() for _ in plan.calls]
        self.machine = Machine(plan)
        self.blocks = BlockTable()

    def start_over(self) -> None:
        """Forget every batch and payload, and the actors that hold some."""
        for pool in self.pools:
            pool.stop()
        self.machine = Machine(self._plan)
        self.blocks = BlockTable()

    def stop(self, pool: Pool) -> None:
        """Give the pool's actors back; what they still execute belongs to nobody."""
        for flight in pool.stop():
            cause = Cause(CauseKind.CANCELLED, "its actor was given back", self._plan.calls[flight.batch.call].name)
            self.machine.fail(flight.batch.id, AttemptFailure.NOT_STARTED, cause)

    def dispatch(self) -> None:
        """Fill up the actors: the idle ones first, then those that can queue another batch."""
        for pool in self.pools:
            if pool.live and self.machine.ready(pool.module.id):
                for depth in range(pool.max_in_flight):
                    if not self._fill(pool, depth):
                        break

    def _fill(self, pool: Pool, depth: int) -> bool:
        """One more batch for each actor that holds ``depth`` of them; False once there is none to give."""
        idle = 0 if depth else len(pool.holding[0])
        for replica in list(pool.holding[depth]):
            if depth and replica.flights[0].batch.alone:
                continue
            batch = self.machine.reserve(pool.module.id, idle=idle, workers=len(pool.live))
            if batch is None:
                return False
            self._send(replica, batch)
            idle -= not depth
        return True

    def _send(self, replica: Replica, batch: DispatchBatch) -> None:
        needed: dict[int, None] = {}
        for column in batch.columns:
            needed.update(dict.fromkeys(column.blocks))
        get = self.blocks.get
        blocks: list[tuple[int, bytes | None]] = []
        objects: list[Any] = []
        read: list[tuple[int, Any]] = []
        for block in needed:
            if block < 0:
                continue
            payload = get(block)
            if type(payload) is bytes:
                blocks.append((block, payload))
            else:
                blocks.append((block, None))
                objects.append(payload)
                read.append((block, payload))
        slots = self._slots[batch.call].slots()
        flight = Flight(batch, replica, read)
        done = functools.partial(self._post, self._on_reply, flight)
        try:
            replica.send(flight, pack_request(batch, blocks, slots), objects, slots, done)
        except Exception as error:
            self._post(self._on_reply, flight, error)

    def _on_reply(self, flight: Flight, value: Any) -> None:
        if type(value) is not bytes:
            self._broken(flight, value)
            return
        if not flight.replica.finish(flight):
            return
        reply = pickle.loads(value)
        batch = flight.batch
        self._tally(batch, reply[-2], reply[-1])
        if reply[0] == OK:
            self.machine.commit(batch.id, self._report(flight, reply[1], reply[2]))
            return
        raised: Raised = reply[1]
        for segment in batch.segments:
            if active := self._active.get(segment.microbatch):
                active.raised = raised
        cause = Cause(raised.kind, raised.message, self._plan.calls[batch.call].name)
        self.machine.fail(batch.id, AttemptFailure.EXCEPTION, cause)

    def _report(self, flight: Flight, failures: list[Any], outputs: list[Any]) -> BatchReport:
        call, objects = flight.batch.call, flight.objects
        total = 0
        reports: list[OutputReport] = []
        for values, elements, lengths, mask, element_mask in outputs:
            total += sum(piece[1] for piece in values) + sum(piece[1] for piece in elements)
            reports.append(
                OutputReport(self._store(values, objects), self._store(elements, objects), lengths, mask, element_mask)
            )
        self._slots[call].seen(total)
        rows: tuple[RowFailure, ...] = ()
        if failures:
            name = self._plan.calls[call].name
            rows = tuple(
                RowFailure(f.row, Cause(f.kind, f.message, name, retryable=f.retryable), f.group) for f in failures
            )
        return BatchReport(rows, tuple(reports))

    def _store(self, pieces: list[Piece], objects: Sequence[Any]) -> tuple[Block, ...]:
        add = self.blocks.add
        return tuple([add(objects[held] if isinstance(held, int) else held, rows, size) for rows, size, held in pieces])

    def _tally(self, batch: DispatchBatch, started: float, ended: float) -> None:
        self._telemetry.batch(batch.call, batch.size, ended - started)
        cost = self._costs[batch.call]
        cost.seen(batch.size, ended - started)
        self.machine.learn(batch.call, cost.overhead_rows())
        if len(batch.segments) == 1:
            if active := self._active.get(batch.segments[0].microbatch):
                active.submission.tally.calls[batch.call].batch(batch.size, 1.0, started, ended)
            return
        seen: dict[int, tuple[RunTally, int]] = {}
        for segment in batch.segments:
            if active := self._active.get(segment.microbatch):
                tally = active.submission.tally
                _, grains = seen.get(id(tally), (tally, 0))
                seen[id(tally)] = (tally, grains + len(segment.grains))
        for tally, grains in seen.values():
            tally.calls[batch.call].batch(batch.size, grains / batch.size, started, ended)

    def _broken(self, flight: Flight, error: Any) -> None:
        """An answer that is no reply: the actor died, a payload is lost, or Ray could not carry the call."""
        replica, batch = flight.replica, flight.batch
        name = self._plan.calls[batch.call].name
        if who_died(error):
            if not replica.gone and flight in replica.flights:
                place = f"process {replica.pid} on {replica.node}"
                self.lose(replica, AttemptFailure.WORKER_DIED, f"its worker died ({place}): {who_died(error)}")
        elif replica.finish(flight):
            flight.look_at_errors()
            if is_lost_payload(error):
                self._restart_readers(flight)
            else:
                cause = Cause(CauseKind.WORKER_CRASH, f"Ray could not run it: {error}"[:4000], name, retryable=True)
                self.machine.fail(batch.id, AttemptFailure.WORKER_DIED, cause)

    def lose(self, replica: Replica, why: AttemptFailure, message: str) -> None:
        """A replica goes: blame the batch that it was executing, take back those behind it, start a successor."""
        _log.warning("an actor of %s is lost: %s", replica.pool.module.name, message)
        for position, flight in enumerate(replica.pool.lose(replica)):
            name = self._plan.calls[flight.batch.call].name
            kind = CauseKind.TIMEOUT if why is AttemptFailure.DEADLINE else CauseKind.WORKER_CRASH
            cause = Cause(kind, message, name, retryable=True)
            self.machine.fail(flight.batch.id, AttemptFailure.NOT_STARTED if position else why, cause)

    def check_deadlines(self, now: float) -> None:
        for pool in self.timed:
            for replica in pool.overdue(now):
                message = f"a dispatch batch exceeded its deadline of {pool.deadline_s:g} s and its actor was killed"
                self.lose(replica, AttemptFailure.DEADLINE, message)

    def _restart_readers(self, flight: Flight) -> None:
        """A payload that the flight reads is lost: its other Grains go back, the microbatches that need it restart."""
        batch = flight.batch
        name = self._plan.calls[batch.call].name
        readers = segments_reading(batch, [block for block, _ in flight.blocks])
        self.machine.fail(
            batch.id, AttemptFailure.NOT_STARTED, Cause(CauseKind.WORKER_CRASH, "a payload was lost", name)
        )
        for segment in readers:
            active = self._active.get(segment.microbatch)
            if active is not None and active.attempt == segment.attempt:
                self._restart(active)
