"""Dispatch batches out to actors, their replies in: what happens between a reservation and its commit."""

from __future__ import annotations

import functools
import logging
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
from rayorch_flows.runtime.cost import BatchCost
from rayorch_flows.runtime.faults import is_lost_payload, segments_reading, who_died
from rayorch_flows.runtime.metrics import RunTally
from rayorch_flows.runtime.payloads.blocks import BlockTable, SlotPolicy
from rayorch_flows.runtime.payloads.codec import INLINE_BATCH_BYTES
from rayorch_flows.runtime.payloads.wire import OK, Piece, Raised, module_calls, pack_request, unpack_reply
from rayorch_flows.runtime.pool import Flight, Pool, Post, Replica
from rayorch_flows.runtime.submission import Active
from rayorch_flows.runtime.telemetry import Telemetry

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
            self._blame(flight, AttemptFailure.NOT_STARTED, CauseKind.CANCELLED, "its actor was given back")

    def dispatch(self) -> None:
        """Fill up the actors: the idle ones first, then those that can queue another batch."""
        for pool in self.pools:
            if pool.live and self.machine.ready(pool.module.id):
                given: dict[Replica, list[DispatchBatch]] = {}
                for depth in range(pool.room):
                    if not self._fill(pool, depth, given):
                        break
                for replica, batches in given.items():
                    self._send_all(replica, batches)

    def _fill(self, pool: Pool, depth: int, given: dict[Replica, list[DispatchBatch]]) -> bool:
        """One more batch for each actor that holds ``depth`` of them; False once there is none to give."""
        idle = 0 if depth else len(pool.holding[0])
        for replica in list(pool.holding[depth]):
            if replica.alone or replica.full(len(given.get(replica, ()))):
                continue
            batch = self.machine.reserve(pool.module.id, idle=idle, workers=len(pool.live))
            if batch is None:
                return False
            replica.give(batch)
            given.setdefault(replica, []).append(batch)
            idle -= not depth
        return True

    def _send_all(self, replica: Replica, batches: list[DispatchBatch]) -> None:
        """In as few calls as may be: what is small shares one, what has objects of its own goes by itself."""
        shared: list[DispatchBatch] = []
        inline: dict[int, bytes] = {}
        for batch in batches:
            slots = self._slots[batch.call].slots()
            payloads = self._payloads(batch)
            small = {block: payload for block, payload in payloads.items() if type(payload) is bytes}
            together = sum(map(len, (inline | small).values()))
            full = len(shared) == replica.pool.per_call or together > INLINE_BATCH_BYTES
            own = slots > 0 or len(small) < len(payloads)
            if shared and (full or own):
                self._send(replica, shared, inline, 0)
                shared, inline = [], {}
            if own:
                self._send(replica, [batch], payloads, slots)
                continue
            shared.append(batch)
            inline.update(small)
        if shared:
            self._send(replica, shared, inline, 0)

    def _payloads(self, batch: DispatchBatch) -> dict[int, Any]:
        """The blocks that a batch reads: bytes, or references of objects."""
        needed: dict[int, None] = {}
        for column in batch.columns:
            needed.update(dict.fromkeys(column.blocks))
        return self.blocks.subset(needed)

    def _send(self, replica: Replica, batches: Sequence[DispatchBatch], payloads: dict[int, Any], slots: int) -> None:
        read = [(block, payload) for block, payload in payloads.items() if type(payload) is not bytes]
        flight = Flight(batches, replica, read)
        objects = [payload for _, payload in read]
        sent = [(block, payload if type(payload) is bytes else None) for block, payload in payloads.items()]
        done = functools.partial(self._post, self._on_reply, flight)
        replica.depart(flight)
        try:
            replica.send(flight, pack_request(batches, sent, slots), objects, slots, done)
        except Exception as error:
            self._post(self._on_reply, flight, error)

    def _on_reply(self, flight: Flight, value: Any) -> None:
        if type(value) is not bytes:
            self._broken(flight, value)
            return
        if not flight.replica.finish(flight):
            return
        for batch, reply in zip(flight.batches, unpack_reply(value), strict=True):
            self._tally(batch, reply[-2], reply[-1])
            if flight.replica.worked:
                self._learn(batch, reply[-1] - reply[-2])
            flight.replica.worked = True
            if reply[0] == OK:
                self.machine.commit(batch.id, self._report(batch.call, flight.objects, reply[1], reply[2]))
                continue
            raised: Raised = reply[1]
            for segment in batch.segments:
                active = self._active.get(segment.microbatch)
                if active and self.machine.active(segment.microbatch):  # else an earlier batch has aborted it
                    active.raised = raised
            self._fail(batch, AttemptFailure.EXCEPTION, raised.kind, raised.message)
        pool = flight.replica.pool
        if flight.objects or flight.blocks:
            pool.per_call = 1  # such batches go by themselves
        else:
            pool.learn(max(self._costs[call].batch_s() for call in self.machine.index.module_calls[pool.module.id]))

    def _fail(self, batch: DispatchBatch, why: AttemptFailure, kind: CauseKind, message: str) -> None:
        retryable = kind in (CauseKind.TIMEOUT, CauseKind.WORKER_CRASH)
        self.machine.fail(batch.id, why, Cause(kind, message, self._plan.calls[batch.call].name, retryable=retryable))

    def _report(self, call: int, objects: Sequence[Any], failures: list[Any], outputs: list[Any]) -> BatchReport:
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

    def _learn(self, batch: DispatchBatch, seconds: float) -> None:
        cost = self._costs[batch.call]
        cost.seen(batch.size, seconds)
        self.machine.learn(batch.call, cost.overhead_rows())

    def _tally(self, batch: DispatchBatch, started: float, ended: float) -> None:
        self._telemetry.batch(batch.call, batch.size, ended - started)
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
        replica = flight.replica
        if who_died(error):
            if not replica.gone and flight in replica.flights:
                place = f"process {replica.pid} on {replica.node}"
                self.lose(replica, AttemptFailure.WORKER_DIED, f"its worker died ({place}): {who_died(error)}")
        elif replica.finish(flight):
            flight.look_at_errors()
            if is_lost_payload(error):
                self._restart_readers(flight)
            else:
                message = f"Ray could not run it: {error}"[:4000]
                self._blame(flight, AttemptFailure.WORKER_DIED, CauseKind.WORKER_CRASH, message)

    def lose(self, replica: Replica, why: AttemptFailure, message: str) -> None:
        """A replica goes: blame the call that it was executing, take back those behind it, start a successor."""
        _log.warning("an actor of %s is lost: %s", replica.pool.module.name, message)
        kind = CauseKind.TIMEOUT if why is AttemptFailure.DEADLINE else CauseKind.WORKER_CRASH
        for position, flight in enumerate(replica.pool.lose(replica)):
            self._blame(flight, AttemptFailure.NOT_STARTED if position else why, kind, message)

    def _blame(self, flight: Flight, why: AttemptFailure, kind: CauseKind, message: str) -> None:
        """A call came to nothing. Which of several batches it was to, nobody knows: they are all taken back, and the
        pool's batches go one by one from now on."""
        if len(flight.batches) > 1 and why is not AttemptFailure.NOT_STARTED:
            flight.replica.pool.share_no_more()
            why = AttemptFailure.NOT_STARTED
        for batch in flight.batches:
            self._fail(batch, why, kind, message)

    def check_deadlines(self, now: float) -> None:
        for pool in self.timed:
            for replica in pool.overdue(now):
                message = f"a dispatch batch exceeded its deadline of {pool.deadline_s:g} s and its actor was killed"
                self.lose(replica, AttemptFailure.DEADLINE, message)

    def _restart_readers(self, flight: Flight) -> None:
        """A payload that the flight reads is lost: its other Grains go back, the microbatches that need it restart."""
        read = [block for block, _ in flight.blocks]
        for batch in flight.batches:
            readers = segments_reading(batch, read)
            self._fail(batch, AttemptFailure.NOT_STARTED, CauseKind.WORKER_CRASH, "a payload was lost")
            for segment in readers:
                active = self._active.get(segment.microbatch)
                if active is not None and active.attempt == segment.attempt:
                    self._restart(active)
