"""The lineage engine as a machine without I/O: events in, dispatch batches and instructions out.

Theory of operation. ``admit`` creates the root Entities of a microbatch and publishes its source Items. Publications
run through the Plan (``propagation``) and make Grains ready or seal them. Whoever owns the workers asks ``reserve`` for
dispatch batches and answers each with ``commit`` or ``fail``, exactly once or late or twice: only Reports of Grains in
flight at their current generation count. ``instructions`` tells which source items became terminal and which blocks
nobody needs. There is no clock, no thread and no randomness here: equal events give equal states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rayorch_flows.errors import ExecutionError
from rayorch_flows.lineage import invariants
from rayorch_flows.lineage.causes import cause_of
from rayorch_flows.lineage.columns import append, empty_column
from rayorch_flows.lineage.commit import (
    PlacedOutputs,
    accepted_rows,
    as_range,
    blame,
    commit_segment,
    count_back,
    place_items,
)
from rayorch_flows.lineage.facts import NO_BLOCK, Microbatch
from rayorch_flows.lineage.index import HOLDERS, build_index
from rayorch_flows.lineage.propagation import Propagation
from rayorch_flows.lineage.protocol import (
    AttemptFailure,
    BatchReport,
    BlocksReleased,
    DispatchBatch,
    Instruction,
    MicrobatchAborted,
    MicrobatchDone,
    Segment,
    SourceColumn,
    SourceResult,
    SourceTerminal,
)
from rayorch_flows.lineage.recovery import FailedAttempt, Recovery, decide, halves
from rayorch_flows.lineage.reservation import Asking, CallHistory, Reservation, reserve
from rayorch_flows.lineage.results import source_result
from rayorch_flows.lineage.retention import Retention
from rayorch_flows.lineage.tables import GrainEvent, Phase, move
from rayorch_flows.lineage.totals import CallTotals
from rayorch_flows.program.outcomes import OUTCOMES, Cause, ItemOutcome, OutcomeCode
from rayorch_flows.program.plan import NO_ID, ROOT, Plan


@dataclass(frozen=True, slots=True)
class CallCounts:
    """Grains of one Call in one microbatch by phase and outcome, and the dispatch batches that carried them."""

    waiting: int
    ready: int
    in_flight: int
    sealed: int
    failed: int
    suppressed: int
    dropped: int
    retries: int
    batches: int
    batch_rows: int


class Machine:
    """State of any number of active microbatches of one Plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.index = build_index(plan)
        self._retention = Retention(len(plan.calls))
        self._propagation = Propagation(self.index, self._retention)
        self._active: dict[str, Microbatch] = {}
        self._batches: dict[int, DispatchBatch] = {}
        self._history = [CallHistory() for _ in plan.calls]
        self._over = [CallTotals() for _ in plan.calls]
        self._batch_id = 0
        self._admitted = 0
        self.draining = True  # set to False while more microbatches are about to be admitted: batches then stay full
        self._instructions: list[SourceTerminal | MicrobatchDone | MicrobatchAborted] = []

    # Events

    def admit(self, microbatch: str, attempt: int, rows: int, columns: Sequence[SourceColumn]) -> None:
        """Start a microbatch of ``rows`` source items; one column a source Port, in order."""
        if microbatch in self._active:
            raise ExecutionError(
                f"microbatch {microbatch} is already active", next_step="cancel it before a new attempt"
            )
        if len(columns) != len(self.plan.sources):
            raise ExecutionError(f"{self.plan.name} takes {len(self.plan.sources)} source columns, not {len(columns)}")
        self._admitted += 1
        state = Microbatch(self.index, id=microbatch, attempt=attempt, order=self._admitted, rows=rows)
        self._active[microbatch] = state
        self._propagation.admit_roots(state)
        for port, column in zip(self.plan.sources, columns, strict=True):
            self._admit_column(state, port, column)
        state.closing.extend(row for row in range(rows) if not state.open[row])
        self._finish([state])
        if not rows:
            self._end(state)

    def reserve(self, module: int, *, idle: int, workers: int) -> DispatchBatch | None:
        """The next dispatch batch for one of ``workers`` actors of a module.

        ``idle``: how many of them hold no batch, the asking one among them; 0 if the asking one holds one.
        """
        reservation = reserve(
            self.index,
            tuple(self._active.values()),
            self._retention.live,
            self._history,
            module,
            Asking(idle, workers, self.draining),
        )
        return self._dispatch(module, reservation) if reservation else None

    def commit(self, batch_id: int, report: BatchReport) -> None:
        """Take the Reports of a dispatch batch. Late, duplicate and stale ones change nothing."""
        batch = self._batches.pop(batch_id, None)
        blocks = [b for output in report.outputs for b in (*output.values, *output.elements)]
        self._retention.register(blocks, batch.call if batch else NO_ID)
        if batch is not None:
            self._history[batch.call].rows += batch.size
            self._history[batch.call].nbytes += sum(b.nbytes for b in blocks)
            failures = {failure.row: failure for failure in report.failures}
            placed = PlacedOutputs(report.outputs, failures, batch.size)
            touched: list[Microbatch] = []
            row = 0
            for segment in batch.segments:
                state = self._current(segment)
                if state is not None:
                    commit_segment(
                        self._propagation, self._retention, state, batch.call, segment, failures, placed, row
                    )
                    self._propagation.follow(state)
                    touched.append(state)
                row += len(segment.grains)
            self._finish(touched)
        self._retention.let_blocks_go(blocks)

    def fail(self, batch_id: int, failure: AttemptFailure, cause: Cause) -> None:
        """Take a failed attempt at a dispatch batch: its Grains go back, are isolated, or abort their microbatch."""
        batch = self._batches.pop(batch_id, None)
        if batch is None:
            return
        touched: list[Microbatch] = []
        for segment in batch.segments:
            state = self._current(segment)
            if state is not None:
                self._recover(state, batch, segment, failure, cause)
                touched.append(state)
        self._finish([state for state in touched if state.id in self._active])

    def cancel(self, microbatch: str) -> None:
        """Forget a microbatch: nothing of it is dispatched any more, Reports still to come are fenced off."""
        self._untell(microbatch)
        state = self._active.pop(microbatch, None)
        if state is not None:
            self._drop(state)

    def pause(self, microbatch: str, *, paused: bool) -> None:
        """Stop or go on dispatching a microbatch; what is in flight still commits."""
        self._active[microbatch].paused = paused

    def learn(self, call: int, overhead_rows: float) -> None:
        """The fixed cost of a dispatch batch of ``call``, in rows, as measured by whoever has a clock."""
        self._history[call].overhead_rows = overhead_rows

    def taken(self, microbatch: str, row: int) -> None:
        """The result of a terminal source item has been fetched: its payloads may go."""
        state = self._active[microbatch]
        if state.taken[row]:
            return
        state.taken[row] = 1
        self._retention.let_go(state, self.index.output_releases, [row])
        holders = self._holders() if state.sweep[row] else self.index.leftover
        for port in holders:
            path = self.index.domain_path[self.plan.ports[port].domain]
            self._retention.let_go_all(state, port, state.descendants(path, [row]))
        if state.taken.count(1) == state.rows:
            self._end(state)

    # Questions

    def instructions(self) -> list[Instruction]:
        """What the events since the last call ask for; each is told once."""
        drained: list[Instruction] = [*self._instructions]
        self._instructions.clear()
        if self._retention.released:
            drained.append(BlocksReleased(self._retention.released))
            self._retention.released = []
        return drained

    def result(self, microbatch: str, row: int, *, children: bool = True) -> SourceResult:
        """What became of a source item that was reported terminal and not taken yet; its children, if wanted."""
        return source_result(self._active[microbatch], row, children=children)

    def ready(self, module: int) -> bool:
        """Whether a Grain of any Call and microbatch is ready for a module's actors."""
        return any(m.calls[c].ready for m in self._active.values() for c in self.index.module_calls[module])

    def counts(self, microbatch: str, call: int) -> CallCounts:
        s = self._active[microbatch].calls[call]
        return CallCounts(
            s.waiting,
            s.ready,
            s.in_flight,
            s.sealed,
            s.failed,
            s.suppressed,
            s.dropped,
            s.retries,
            s.batches,
            s.batch_rows,
        )

    def totals(self, call: int) -> CallTotals:
        """Grains of one Call over the life of this machine, cancelled and aborted microbatches included."""
        over = self._over[call]
        totals = replace(over, failures=over.failures.copy())
        for state in self._active.values():
            totals.add(state.calls[call], over=False)
        return totals

    def live_bytes(self, call: int) -> int:
        """Bytes that a Call has produced and nobody has released."""
        return self._retention.live[call]

    def idle(self) -> bool:
        return not self._active

    def active(self, microbatch: str) -> bool:
        """Whether it was admitted and neither ended nor was aborted or cancelled."""
        return microbatch in self._active

    def outcome(
        self, microbatch: str, port: int, row: int, ordinals: tuple[int, ...] = ()
    ) -> tuple[ItemOutcome | None, Cause | None]:
        """One Item so far, and its root cause: the Port at the Entity under source item ``row`` with these ordinals."""
        state = self._active[microbatch]
        entity = state.entity(self.plan.ports[port].domain, row, ordinals)
        return OUTCOMES[state.ports[port].outcome[entity]], cause_of(state, port, entity)

    def phase(self, microbatch: str, call: int, row: int, ordinals: tuple[int, ...] = ()) -> Phase:
        """Where the Grain of ``call`` at that Entity is in its life."""
        state = self._active[microbatch]
        return Phase(state.calls[call].phase[state.entity(self.plan.calls[call].domain, row, ordinals)])

    def ordinals(self, microbatch: str, domain: int, entity: int) -> tuple[int, ...]:
        """The path of an Entity: its source row, then the ordinals down to it."""
        state = self._active[microbatch]
        return (state.domains[domain].root[entity], *state.ordinals(domain, entity))

    def validate(self) -> None:
        """Check every invariant; raise InvariantError with the story of what is wrong."""
        invariants.check(self._active, self._batches, self._retention)

    # How events are taken

    def _admit_column(self, state: Microbatch, port: int, column: SourceColumn) -> None:
        blocks = (*column.report.values, *column.report.elements)
        self._retention.register(blocks, NO_ID)
        failures = {failure.row: failure for failure in column.failures}
        root = self.plan.domains[ROOT].name
        for row, failure in failures.items():
            state.ports[port].blamed[row] = replace(failure.cause, domain=root)
        present = [row for row in range(state.rows) if row not in failures]
        if present:
            placed = PlacedOutputs((column.report,), failures, state.rows)
            place_items(
                self._retention,
                state,
                port,
                present,
                placed.ranks(0, present),
                placed.outputs[0],
                self.index.group_uses[port],
            )
            self._propagation.publish(state, port, as_range(present), OutcomeCode.PRESENT)
        self._propagation.publish(state, port, list(failures), OutcomeCode.FAILED)
        self._propagation.follow(state)
        self._retention.let_blocks_go(blocks)

    def _dispatch(self, module: int, reservation: Reservation) -> DispatchBatch:
        call = reservation.call
        self._batch_id += 1
        inputs = self.plan.calls[call].inputs
        columns = tuple(empty_column(self.plan.ports[i.port].depth) for i in inputs)
        segments: list[Segment] = []
        for state, grains in reservation.groups:
            calls = state.calls[call]
            move(calls.phase, grains, GrainEvent.RESERVE)
            calls.ready -= len(grains)
            calls.in_flight += len(grains)
            calls.batches += 1
            calls.batch_rows += len(grains)
            generation = calls.generation
            sent = [generation.get(grain, 0) for grain in grains] if generation else [0] * len(grains)
            segments.append(Segment(state.id, state.attempt, grains, sent))
            for column, source in zip(columns, inputs, strict=True):
                append(column, state, source.port, grains)
        size = sum(len(segment.grains) for segment in segments)
        batch = DispatchBatch(self._batch_id, module, call, tuple(segments), columns, size, reservation.alone)
        self._batches[batch.id] = batch
        return batch

    def _recover(
        self, state: Microbatch, batch: DispatchBatch, segment: Segment, failure: AttemptFailure, cause: Cause
    ) -> None:
        """Apply the recovery policy to one microbatch's part of a failed dispatch batch."""
        call = batch.call
        calls = state.calls[call]
        grains = [segment.grains[position] for position in accepted_rows(state, call, segment)]
        count_back(state, call, segment.grains, ())
        if not grains:
            return
        mixed = len(batch.segments) > 1
        recovery = decide(
            self.plan.modules[batch.module].options.recovery,
            FailedAttempt(
                failure,
                batch.size,
                mixed,
                batch.alone,
                max(calls.udf_failures.get(grain, 0) for grain in grains),
                max(calls.infra_failures.get(grain, 0) for grain in grains),
            ),
        )
        if recovery is Recovery.ABORT:
            self._active.pop(state.id)
            self._drop(state)
            self._untell(state.id)
            self._instructions.append(MicrobatchAborted(state.id, blame(state, call, grains[0], cause)))
            return
        if recovery is Recovery.FAIL_RECORD:
            calls.in_flight -= 1
            self._propagation.seal(
                state,
                call,
                grains,
                GrainEvent.ACCEPT,
                OutcomeCode.FAILED,
                blame(state, call, grains[0], cause),
            )
            self._propagation.follow(state)
            return
        if failure is AttemptFailure.EXCEPTION and not mixed:
            _count(calls.udf_failures, grains)
        elif failure in (AttemptFailure.WORKER_DIED, AttemptFailure.DEADLINE):
            _count(calls.infra_failures, grains)
        _count(calls.generation, grains)
        move(calls.phase, grains, GrainEvent.RETRY)
        calls.in_flight -= len(grains)
        calls.ready += len(grains)
        calls.retries += len(grains)
        if recovery is Recovery.RETRY_NOW:
            calls.urgent.append(grains)
        elif recovery is Recovery.RETRY_AT_TAIL:
            calls.tail.append(grains)
        else:
            calls.tail.extend(halves(grains))

    def _current(self, segment: Segment) -> Microbatch | None:
        """The microbatch of a segment, if the attempt that dispatched it is still the current one."""
        state = self._active.get(segment.microbatch)
        return state if state is not None and state.attempt == segment.attempt else None

    def _finish(self, touched: list[Microbatch]) -> None:
        """Tell which source items became terminal by the event just taken."""
        for state in touched:
            rows = [row for row in dict.fromkeys(state.closing) if not state.open[row] and not state.terminal[row]]
            state.closing.clear()
            if rows:
                for row in rows:
                    state.terminal[row] = 1
                self._instructions.append(SourceTerminal(state.id, rows))
                if state.terminal.count(1) == state.rows:
                    self._instructions.append(MicrobatchDone(state.id))

    def _untell(self, microbatch: str) -> None:
        """Nobody has heard yet what the last events said of a microbatch that is now gone: nobody will."""
        self._instructions = [told for told in self._instructions if told.microbatch != microbatch]

    def _end(self, state: Microbatch) -> None:
        """Drop the state of a microbatch whose results are all taken."""
        if not state.rows:
            self._instructions.append(MicrobatchDone(state.id))
        del self._active[state.id]
        self._drop(state)

    def _drop(self, state: Microbatch) -> None:
        """Let go of every payload that a microbatch still holds; keep its totals."""
        for totals, calls in zip(self._over, state.calls, strict=True):
            totals.add(calls, over=True)
        for port in self._holders():
            block = state.ports[port].block
            if block.count(NO_BLOCK) != len(block):
                self._retention.let_go_all(state, port, range(len(block)))
        for domain in self.plan.domains[1:]:
            expansion = state.domains[domain.id].expansion
            for group in dict.fromkeys(self.plan.ports[g].holder for g in domain.groups):
                for parent, pieces in state.ports[group].pieces.items():
                    if not expansion[parent]:
                        for piece in pieces:
                            self._retention.drop(piece.block)

    def _holders(self) -> list[int]:
        return [port.id for port in self.plan.ports if port.kind in HOLDERS]


def _count(counts: dict[int, int], grains: list[int]) -> None:
    for grain in grains:
        counts[grain] = counts.get(grain, 0) + 1
