"""Plays the runtime against the machine under a random schedule, and keeps its own ledger of what may happen.

The ledger knows which Grain is in flight in which batch, at which generation, which barriers stand, and how often an
attempt at each Grain failed; every batch, Report, abort and isolation is held against it. When a source item is
terminal, all its facts are compared with the reference interpreter.
"""

from __future__ import annotations

import pickle
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rayorch_flows.lineage.machine import Machine
from rayorch_flows.lineage.protocol import (
    AttemptFailure,
    BatchReport,
    Block,
    BlocksReleased,
    DispatchBatch,
    Instruction,
    Lost,
    MicrobatchAborted,
    MicrobatchDone,
    OutputReport,
    RowFailure,
    SourceColumn,
    SourceResult,
    SourceTerminal,
)
from rayorch_flows.program.outcomes import Cause, CauseKind, GroupFailure, ItemOutcome, RecordFailure
from rayorch_flows.program.plan import NO_ID, ROOT, Batching, Plan, PortKind
from rayorch_flows.program.recovery import RecoveryMode
from tests.properties.programs import Reader
from tests.properties.world import Outcomes, decode
from tests.reference import Fact, GrainKey, Path, Reference

Grain = tuple[str, int, int, Path]  # microbatch, attempt, Call, Entity
Owner = tuple[str, int, int]  # microbatch, attempt, source row
MAX_STEPS = 20_000


class Broken(AssertionError):
    """The machine did something that no legal schedule allows."""


def require(condition: object, *story: object) -> None:
    if not condition:
        raise Broken(" ".join(str(part) for part in story))


@dataclass
class Flying:
    """A dispatch batch on an actor."""

    batch: DispatchBatch
    actor: tuple[int, int]
    grains: list[Grain]
    args: list[tuple[Any, ...]]


@dataclass
class Microbatch:
    name: str
    rows: int
    outcomes: Outcomes
    attempt: int = 0
    paused: bool = False
    state: str = "pending"  # pending | running | done | cancelled
    terminal: set[int] = field(default_factory=set)
    taken: set[int] = field(default_factory=set)
    dispatched: list[tuple[GrainKey, tuple[Any, ...]]] = field(default_factory=list)
    caught: dict[GrainKey, Path] = field(default_factory=dict)
    tally: defaultdict[int, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))


class Driver:
    def __init__(
        self,
        plan: Plan,
        schedule: Reader,
        *,
        microbatches: list[tuple[int, Outcomes]],
        faults: int = 0,
        cancels: int = 0,
        replays: int = 0,
        pauses: int = 0,
        make_machine: Callable[[Plan], Any] = Machine,
    ) -> None:
        self.plan = plan
        self.r = schedule
        self.machine = make_machine(plan)
        self.microbatches = {
            outcomes.name: Microbatch(outcomes.name, rows, outcomes) for rows, outcomes in microbatches
        }
        self.faults = faults
        self.cancels = cancels
        self.replays = replays
        self.pauses = pauses
        self.payloads: dict[int, list[Any]] = {}
        self.released: set[int] = set()
        self.owners: dict[int, set[Owner]] = {}
        self.batches: set[int] = set()
        self.actors: dict[tuple[int, int], list[Flying]] = {
            (module.id, i): [] for module in plan.modules for i in range(module.options.replicas)
        }
        self.dry: set[int] = set()
        self.past: list[Flying] = []
        self.in_flight: dict[Grain, int] = {}
        self.generations: dict[Grain, int] = {}
        self.committed: set[Grain] = set()
        self.barriers: dict[tuple[str, int, int, Path], Path] = {}
        self.exceptions: Counter[Grain] = Counter()
        self.shared: Counter[Grain] = Counter()  # exceptions of batches that mixed microbatches: nobody's yet
        self.infra: Counter[Grain] = Counter()
        self.whole: set[Grain] = set()
        self.companions: dict[Grain, frozenset[Grain]] = {}
        self.commits: Counter[tuple[str, int, int, Path]] = Counter()
        self.results: list[SourceResult] = []
        self.events = 0

    # -- the loop ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        while not self.finished():
            self.events += 1
            require(self.events < MAX_STEPS, "no end in sight")
            self.step()
        self.finish()

    def finished(self) -> bool:
        return all(m.state in ("done", "cancelled") for m in self.microbatches.values()) and not any(
            self.actors.values()
        )

    def step(self) -> None:
        busy = [actor for actor, flying in self.actors.items() if flying]
        able = [
            actor
            for actor, flying in self.actors.items()
            if len(flying) < self.plan.modules[actor[0]].options.max_in_flight
            and actor[0] not in self.dry
            and not (flying and flying[0].batch.alone)
        ]
        pending = [m for m in self.microbatches.values() if m.state == "pending"]
        choice = self.r.weighted({"complete": 10, "reserve": 10, "admit": 3, "disturb": 2})
        if choice == "disturb" and self.disturb():
            pass
        elif pending and (choice == "admit" or not (busy or able)):
            self.admit(self.r.pick(pending))
        elif busy and (choice == "complete" or not (able or pending)):
            self.complete(self.r.pick(busy))
        elif able:
            self.reserve(self.r.pick(able))
        elif pending:
            self.admit(self.r.pick(pending))
        else:
            paused = [m for m in self.microbatches.values() if m.paused and m.state == "running"]
            require(busy or paused, "stuck: nothing in flight, nothing to reserve,", self.standing())
            if busy:
                self.complete(self.r.pick(busy))
            for m in paused:
                self.pause(m)

    def running(self) -> list[Microbatch]:
        return [m for m in self.microbatches.values() if m.state == "running"]

    def standing(self) -> dict[str, Any]:
        return {
            m.name: [(call.name, self.machine.counts(m.name, call.id)) for call in self.plan.calls]
            for m in self.microbatches.values()
            if m.state == "running"
        }

    def settle_event(self, *, quiet: bool = False) -> list[Instruction]:
        """What follows every event: the invariants, then the instructions."""
        self.machine.validate()
        if not quiet:
            self.dry.clear()
        told: list[Instruction] = []
        while instructions := self.machine.instructions():
            told += instructions
            for instruction in instructions:
                self.follow(instruction)
        for block in self.payloads:
            require(
                any(self.needs(owner) for owner in self.owners[block]), "a payload outlives its source items", block
            )
        return told

    def needs(self, owner: Owner) -> bool:
        """Whether the source item is still being worked on, or its result not yet taken."""
        m = self.microbatches[owner[0]]
        return m.state == "running" and m.attempt == owner[1] and owner[2] not in m.taken

    def follow(self, instruction: Instruction) -> None:
        match instruction:
            case SourceTerminal():
                self.terminal(instruction)
            case MicrobatchDone():
                self.done(instruction)
            case MicrobatchAborted():
                pass  # the caller judges it
            case BlocksReleased():
                for block in instruction.blocks:
                    require(block in self.payloads, "released twice, or never registered: block", block)
                    self.released.add(block)
                    del self.payloads[block]

    # -- admission and reservation -------------------------------------------------------------------------------

    def admit(self, m: Microbatch) -> None:
        m.attempt += 1
        m.state = "running"
        m.paused = False
        m.terminal, m.taken, m.caught = set(), set(), {}
        m.dispatched = []
        m.tally.clear()
        m.outcomes.isolated = {}
        columns: list[SourceColumn] = []
        for index, port in enumerate(self.plan.sources):
            values = [m.outcomes.source(index, row) for row in range(m.rows)]
            failures = tuple(
                RowFailure(row, cause_of(value)) for row, value in enumerate(values) if isinstance(value, RecordFailure)
            )
            present = [row for row, value in enumerate(values) if not isinstance(value, RecordFailure)]
            owners = [(m.name, m.attempt, row) for row in present]
            columns.append(SourceColumn(self.output_report(port, [values[row] for row in present], owners), failures))
        self.machine.admit(m.name, m.attempt, m.rows, columns)
        self.settle_event()

    def reserve(self, actor: tuple[int, int]) -> None:
        module = self.plan.modules[actor[0]]
        self.machine.draining = self.r.chance(50)
        if self.r.chance(10):
            self.machine.learn(self.r.below(len(self.plan.calls)), float(self.r.below(9)))
        idle = not self.actors[actor]
        resting = sum(not flying for (of, _), flying in self.actors.items() if of == module.id)
        batch = self.machine.reserve(module.id, idle=resting if idle else 0, workers=module.options.replicas)
        require(not self.settle_event(quiet=True), "a reservation asked for something")
        if batch is None:
            paused = any(m.paused and m.state == "running" for m in self.microbatches.values())
            held = idle and not paused and not module.options.max_ready_bytes and self.machine.ready(module.id)
            require(not held, "an idle actor got none of", held, "ready Grains")
            self.dry.add(module.id)
            return
        self.check_batch(batch, module.id, idle)
        args = list(zip(*(decode(column, self.payloads) for column in batch.columns), strict=True))
        require(len(args) == batch.size, "arguments for", len(args), "rows of", batch.size)
        flying = Flying(batch, actor, self.grains(batch), args)
        for grain, row in zip(flying.grains, args, strict=True):
            m = self.microbatches[grain[0]]
            m.dispatched.append((grain[2:], row))
            self.in_flight[grain] = batch.id
        self.actors[actor].append(flying)

    def grains(self, batch: DispatchBatch) -> list[Grain]:
        domain = self.plan.calls[batch.call].domain
        return [
            (s.microbatch, s.attempt, batch.call, self.machine.ordinals(s.microbatch, domain, entity))
            for s in batch.segments
            for entity in s.grains
        ]

    def check_batch(self, batch: DispatchBatch, module: int, idle: bool) -> None:
        options = self.plan.modules[module].options
        require(batch.id not in self.batches, "batch id used twice", batch)
        self.batches.add(batch.id)
        require(batch.module == module == self.plan.calls[batch.call].module, "a batch of another module", batch)
        require(batch.segments and all(s.grains for s in batch.segments), "an empty segment", batch)
        require(len({s.microbatch for s in batch.segments}) == len(batch.segments), "split segments", batch)
        grains = self.grains(batch)
        require(len(grains) == batch.size == len(set(grains)), "a Grain twice, or a wrong size", batch)
        require(batch.size <= options.batch_size, "a batch over its limit", batch)
        require(idle or not batch.alone, "a batch that has to be alone was given to a busy actor", batch)
        if options.batching is Batching.PARENT_BOUND:
            require(len({(g[0], g[3][:-1]) for g in grains}) == 1, "parents mixed under parent_bound", grains)
        generations = [generation for s in batch.segments for generation in s.generations]
        for grain, generation in zip(grains, generations, strict=True):
            m = self.microbatches[grain[0]]
            require(m.state == "running" and m.attempt == grain[1], "a Grain of a stopped attempt", grain)
            require(not m.paused, "a Grain of a paused microbatch", grain)
            require(grain not in self.in_flight, "reserved while in flight", grain)
            require(grain not in self.committed, "reserved after its commit", grain)
            require(self.parent(grain) not in self.barriers, "dispatched behind a barrier", grain)
            last = self.generations.get(grain)
            require(
                generation > last if last is not None else generation == 0,
                f"generation {generation} after {last} of", grain,
            )  # fmt: skip
            self.generations[grain] = generation
        retried = [g for g in grains if g in self.companions]
        if retried:
            group = self.companions[retried[0]]
            require(set(grains) <= group, "a retried batch took other Grains along", grains, "was", group)
            together = {g for g in group if g[0] == grains[0][0] and self.companions.get(g) == group}
            left = {g for g in together & self.whole if self.outcome_of(g)[0] is None}
            require(not left or left == set(grains), "a batch was not retried whole", grains, "but", left)
        if options.slow_start and not idle:
            self.check_window(grains, options.slow_start)

    def check_window(self, grains: list[Grain], window: int) -> None:
        """No (Call, parent) has more uncommitted Grains out than its window, unless the actor would idle."""
        out = Counter(self.parent(grain) for grain in (*self.in_flight, *grains) if grain[3][:-1])
        retried = {self.parent(grain) for grain in (*self.in_flight, *grains) if self.generations[grain]}
        for parent, count in out.items():
            if parent in retried:
                continue
            allowed = max(window + self.commits[parent], 1)
            new = any(self.parent(grain) == parent for grain in grains)
            require(not new or count <= allowed, "a window of", allowed, "holds", count, "Grains of", parent)

    def parent(self, grain: Grain) -> tuple[str, int, int, Path]:
        return (*grain[:3], grain[3][:-1])

    # -- completion ----------------------------------------------------------------------------------------------

    def complete(self, actor: tuple[int, int]) -> None:
        self.answer(actor, self.attempt_failure(self.actors[actor][0]))

    def answer(self, actor: tuple[int, int], failure: AttemptFailure | None) -> None:
        """The batch that the actor is running ends, with a Report or with a failure that may take others along."""
        flying = self.actors[actor][0]
        if failure is None:
            self.actors[actor].pop(0)
            self.past.append(flying)
            self.commit(flying)
            return
        doomed = [flying]
        if failure is not AttemptFailure.EXCEPTION:
            doomed = self.actors[actor][:]
        del self.actors[actor][: len(doomed)]
        self.past += doomed
        self.fail(flying, failure)
        for behind in doomed[1:]:
            self.fail(behind, AttemptFailure.NOT_STARTED)

    def attempt_failure(self, flying: Flying) -> AttemptFailure | None:
        for m, attempt, call, path in flying.grains:
            poison = self.microbatches[m].outcomes.poison(call, path)
            if poison is None or self.microbatches[m].attempt != attempt:
                continue
            if poison.how == "kill":
                return AttemptFailure.WORKER_DIED
            if poison.how == "hang":
                return AttemptFailure.DEADLINE
            aborting = self.mode(call) is not RecoveryMode.ISOLATE_TAIL
            if not aborting or attempt <= poison.until:
                return AttemptFailure.EXCEPTION
        if self.faults and self.r.chance(20):
            self.faults -= 1
            return [AttemptFailure.EXCEPTION, AttemptFailure.WORKER_DIED, AttemptFailure.DEADLINE][self.r.below(3)]
        return None

    def mode(self, call: int) -> RecoveryMode:
        return self.plan.modules[self.plan.calls[call].module].options.recovery.udf_mode

    def live(self, flying: Flying) -> list[Grain]:
        return [grain for grain in flying.grains if self.in_flight.get(grain) == flying.batch.id]

    def returned(self, flying: Flying) -> list[Any]:
        return [
            self.microbatches[m].outcomes.grain(call, path, args)
            for (m, _, call, path), args in zip(flying.grains, flying.args, strict=True)
        ]

    def report(self, flying: Flying, returned: list[Any]) -> BatchReport:
        failed = (RecordFailure, GroupFailure)
        failures = tuple(
            RowFailure(row, cause_of(value), isinstance(value, GroupFailure))
            for row, value in enumerate(returned)
            if isinstance(value, failed)
        )
        present = [value for value in returned if not isinstance(value, failed)]
        owners = [
            (m, attempt, path[0])
            for (m, attempt, _, path), value in zip(flying.grains, returned, strict=True)
            if not isinstance(value, failed)
        ]
        outputs = self.plan.calls[flying.batch.call].outputs
        return BatchReport(
            failures,
            tuple(self.output_report(port, [row[i] for row in present], owners) for i, port in enumerate(outputs)),
        )

    def output_report(self, port: int, values: list[Any], owners: list[Owner]) -> OutputReport:
        plan = self.plan.ports[port]
        elements: tuple[Block, ...] = ()
        lengths = None
        element_mask = None
        if plan.as_group != NO_ID:
            domain = self.plan.domains[plan.as_group]
            holders = [self.plan.ports[group].holder for group in domain.groups]
            expanded = self.plan.ports[domain.ports[holders.index(port)]]
            flat = [element for value in values for element in value]
            lengths = [len(value) for value in values]
            if expanded.as_value:
                elements = self.blocks(flat, [o for o, value in zip(owners, values, strict=True) for _ in value])
            if expanded.as_mask:
                element_mask = bytes(flat)
        return OutputReport(
            values=self.blocks(values, owners) if plan.as_value else (),
            elements=elements,
            lengths=lengths,
            mask=bytes(values) if plan.as_mask else None,
            element_mask=element_mask,
        )

    def blocks(self, values: list[Any], owners: list[Owner]) -> tuple[Block, ...]:
        """The values as payload blocks, cut at random places."""
        made: list[Block] = []
        at = 0
        while at < len(values) or (not made and self.r.chance(10)):
            size = len(values) - at
            if self.r.chance(30):
                size = 1 + self.r.below(max(size, 1))
            part = values[at : at + size]
            id = len(self.payloads) + len(self.released)
            self.payloads[id] = part
            self.owners[id] = set(owners[at : at + size])
            made.append(Block(id, len(part), 10 * len(part)))
            at += max(size, 1)
        return tuple(made)

    def commit(self, flying: Flying) -> None:
        live = self.live(flying)
        returned = self.returned(flying)
        report = self.report(flying, returned)
        by_grain = dict(zip(flying.grains, returned, strict=True))
        for grain in live:
            del self.in_flight[grain]
        self.machine.commit(flying.batch.id, report)
        raised = self.raised(live, by_grain)
        for grain in live:
            failure = by_grain[grain]
            barrier = raised.get(self.parent(grain))
            if barrier is not None and barrier != grain[3]:
                self.catch(grain, barrier)
                continue
            expected = ItemOutcome.FAILED if isinstance(failure, RecordFailure | GroupFailure) else ItemOutcome.PRESENT
            self.require_outcome(grain, expected)
            self.committed.add(grain)
            self.companions.pop(grain, None)
            self.commits[self.parent(grain)] += 1
        for (m, attempt, call, parent), trigger in raised.items():
            for grain in [g for g in self.in_flight if self.parent(g) == (m, attempt, call, parent)]:
                del self.in_flight[grain]
                self.catch(grain, trigger)
        self.barriers |= raised
        if not (self.r.chance(15) and self.hurry()):
            self.settle_event()

    def hurry(self) -> bool:
        """The next event, before anybody asks what the last one did; False if there is none."""
        self.machine.validate()
        running = self.running()
        if self.cancels and running and self.r.chance(30):
            self.cancel(self.r.pick(running))
            return True
        busy = [actor for actor, flying in self.actors.items() if flying]
        if busy:
            self.complete(self.r.pick(busy))
        return bool(busy)

    def raised(self, live: list[Grain], returned: dict[Grain, Any]) -> dict[tuple[str, int, int, Path], Path]:
        """The barriers that a Report raised: one Grain of each parent whose GroupFailure was accepted."""
        raised: dict[tuple[str, int, int, Path], Path] = {}
        for grain in live:
            group = grain[3][:-1] and isinstance(returned[grain], GroupFailure)
            if group and self.outcome_of(grain)[0] is ItemOutcome.FAILED:
                parent = self.parent(grain)
                require(parent not in raised, "two GroupFailures of one parent were accepted", grain)
                raised[parent] = grain[3]
        for grain in live:
            if grain[3][:-1] and isinstance(returned[grain], GroupFailure):
                require(self.parent(grain) in raised, "a GroupFailure was lost", grain)
        return raised

    def catch(self, grain: Grain, trigger: Path) -> None:
        self.require_outcome(grain, ItemOutcome.SUPPRESSED)
        self.microbatches[grain[0]].caught[grain[2:]] = trigger

    def outcome_of(self, grain: Grain) -> tuple[ItemOutcome | None, Cause | None]:
        m, _, call, path = grain
        return self.look(m, self.plan.calls[call].outputs[0], path)

    def look(self, microbatch: str, port: int, path: Path) -> tuple[ItemOutcome | None, Cause | None]:
        """An Item in the machine; None if it is unresolved or its microbatch is gone."""
        if self.microbatches[microbatch].state != "running":
            return None, None
        try:
            return self.machine.outcome(microbatch, port, path[0], path[1:])
        except KeyError:
            return None, None  # the last event aborted it

    def require_outcome(self, grain: Grain, expected: ItemOutcome) -> None:
        found, cause = self.outcome_of(grain)
        require(found is expected, grain, "is", found, cause, "instead of", expected)

    # -- failed attempts -----------------------------------------------------------------------------------------

    def fail(self, flying: Flying, failure: AttemptFailure) -> None:
        kind = {
            AttemptFailure.EXCEPTION: CauseKind.FUNCTION_ERROR,
            AttemptFailure.DEADLINE: CauseKind.TIMEOUT,
        }.get(failure, CauseKind.WORKER_CRASH)
        live = self.live(flying)
        counts = {AttemptFailure.EXCEPTION: self.exceptions, AttemptFailure.NOT_STARTED: Counter[Grain]()}.get(
            failure, self.infra
        )
        for grain in live:
            counts[grain] += 1
            require(counts[grain] < 40, "the same Grain fails for ever", grain)
            self.shared[grain] += failure is AttemptFailure.EXCEPTION and len(flying.batch.segments) > 1
            del self.in_flight[grain]
        self.machine.fail(flying.batch.id, failure, Cause(kind, f"{failure} of batch {flying.batch.id}"))
        for grain in live:
            if self.look(grain[0], self.plan.calls[grain[2]].outputs[0], grain[3])[0] is not None:
                self.isolate(grain, flying, failure, kind)
            elif failure is not AttemptFailure.NOT_STARTED:
                self.companions[grain] = frozenset(live)
                self.whole.discard(grain)
                if self.retried_whole(grain, flying, failure):
                    self.whole.add(grain)
        told = [i for i in self.settle_event() if isinstance(i, MicrobatchAborted)]
        require(all(i.cause.call == self.plan.calls[flying.batch.call].name for i in told), "aborted elsewhere", told)
        aborted = [i.microbatch for i in told]
        self.judge_abort(aborted, live, flying, failure)

    def retried_whole(self, grain: Grain, flying: Flying, failure: AttemptFailure) -> bool:
        """Whether the failed Grains go out again as they were, those of each microbatch together."""
        recovery = self.plan.modules[flying.batch.module].options.recovery
        if failure is not AttemptFailure.EXCEPTION:
            return self.infra[grain] <= recovery.infra_retries
        return self.exceptions[grain] <= recovery.max_udf_retries

    def isolate(self, grain: Grain, flying: Flying, failure: AttemptFailure, kind: CauseKind) -> None:
        """A failed attempt became an outcome: only for a Grain that stood alone, with its budget used up."""
        _, cause = self.outcome_of(grain)
        self.require_outcome(grain, ItemOutcome.FAILED)
        require(len(flying.grains) == 1, "isolated out of a batch of", len(flying.grains), grain)
        recovery = self.plan.modules[flying.batch.module].options.recovery
        if failure is AttemptFailure.EXCEPTION:
            require(recovery.udf_mode is RecoveryMode.ISOLATE_TAIL, "isolated under", recovery, grain)
            require(self.exceptions[grain] >= 2, "isolated without a retry", grain)
        else:
            require(failure is not AttemptFailure.NOT_STARTED, "blamed for a batch before it", grain)
            alone = flying.batch.alone or failure is AttemptFailure.DEADLINE
            require(alone, "blamed for a death that may be another batch's", grain)
            require(self.infra[grain] > recovery.infra_retries, "isolated within its budget", grain)
        require(cause is not None and cause.kind is kind, "isolated with the cause", cause)
        assert cause is not None
        self.microbatches[grain[0]].outcomes.isolated[grain[2:]] = RecordFailure(
            cause.message, cause.kind, cause.retryable
        )
        self.committed.add(grain)

    def judge_abort(self, aborted: list[str], live: list[Grain], flying: Flying, failure: AttemptFailure) -> None:
        recovery = self.plan.modules[flying.batch.module].options.recovery
        may = {g[0] for g in live if self.exceptions[g] > recovery.max_udf_retries}
        must = {g[0] for g in live if self.exceptions[g] - self.shared[g] > recovery.max_udf_retries}
        aborting = failure is AttemptFailure.EXCEPTION and recovery.udf_mode is not RecoveryMode.ISOLATE_TAIL
        if not aborting or len(flying.batch.segments) > 1:
            may = must = set[str]()
        story = ("aborted", aborted, "after", failure, "of", flying.grains, "counts", self.exceptions, recovery)
        require(must <= set(aborted) <= may, *story)
        for name in aborted:
            self.stopped(self.microbatches[name], "pending")

    def stopped(self, m: Microbatch, state: str) -> None:
        m.state = state
        for grain in [g for g in self.in_flight if g[0] == m.name]:
            del self.in_flight[grain]

    # -- disturbances --------------------------------------------------------------------------------------------

    def disturb(self) -> bool:
        if self.cancels and self.r.chance(40):
            running = self.running()
            if running:
                self.cancel(self.r.pick(running))
                return True
        if self.replays and self.past and self.r.chance(60):
            self.replays -= 1
            self.late(self.r.pick(self.past))
            return True
        running = self.running()
        if self.pauses and running:
            self.pauses -= 1
            self.pause(self.r.pick(running))
            return True
        return False

    def cancel(self, m: Microbatch) -> None:
        self.cancels -= 1
        self.stopped(m, "pending" if self.r.chance(50) else "cancelled")
        self.machine.cancel(m.name)
        self.settle_event()

    def pause(self, m: Microbatch) -> None:
        m.paused = not m.paused
        self.machine.pause(m.name, paused=m.paused)
        self.settle_event()

    def late(self, flying: Flying) -> None:
        """A Report or a failure of a batch that was already answered: it must change nothing."""
        before = pickle.dumps(self.machine)
        known = set(self.payloads)
        if self.r.chance(40):
            failure = list(AttemptFailure)[self.r.below(4)]
            self.machine.fail(flying.batch.id, failure, Cause(CauseKind.TIMEOUT, "late"))
        else:
            self.machine.commit(flying.batch.id, self.report(flying, self.returned(flying)))
        instructions = self.settle_event(quiet=True)
        require(all(isinstance(i, BlocksReleased) for i in instructions), "a late Report did", instructions)
        require(set(self.payloads) == known, "a late Report kept or dropped payloads")
        require(pickle.dumps(self.machine) == before, "a late Report changed", flying.grains)

    def coverage(self) -> Counter[str]:
        """What this run went through, for the long mode's summary."""
        return Counter(
            {
                "events": self.events,
                "batches": len(self.batches),
                "commits": len(self.committed),
                "barriers": len(self.barriers),
                "caught": sum(len(m.caught) for m in self.microbatches.values()),
                "isolated": sum(len(m.outcomes.isolated) for m in self.microbatches.values()),
                "source items": sum(len(m.terminal) for m in self.microbatches.values()),
                "attempts": sum(m.attempt for m in self.microbatches.values()),
                "failed attempts at Grains": self.exceptions.total() + self.infra.total(),
            }
        )

    # -- the end -------------------------------------------------------------------------------------------------

    def terminal(self, instruction: SourceTerminal) -> None:
        m = self.microbatches[instruction.microbatch]
        require(m.state == "running", "a source item of a stopped attempt is terminal", m.name)
        for row in instruction.rows:
            require(row not in m.terminal, "terminal twice", m.name, row)
            m.terminal.add(row)
            self.compare(m, row)
        for row in sorted(m.terminal - m.taken):
            if len(m.taken) < m.rows - 1 and not self.r.chance(20):
                self.take(m, row)  # the last one is left for ``done``

    def take(self, m: Microbatch, row: int) -> None:
        m.taken.add(row)
        self.machine.taken(m.name, row)

    def done(self, instruction: MicrobatchDone) -> None:
        m = self.microbatches[instruction.microbatch]
        require(m.state == "running", "a stopped attempt is done", m.name)
        require(m.terminal == set(range(m.rows)), "done without", set(range(m.rows)) - m.terminal)
        for call in self.plan.calls if m.rows else ():
            counts = self.machine.counts(m.name, call.id)
            require(not (counts.waiting or counts.ready or counts.in_flight), "done with open Grains", counts)
            found = Counter({"failed": counts.failed, "suppressed": counts.suppressed, "dropped": counts.dropped})
            found["present"] = counts.sealed - found.total()
            require(+found == m.tally[call.id], "counts of", call.name, counts, "reference", m.tally[call.id])
        m.state = "done"
        for row in sorted(m.terminal - m.taken):
            self.take(m, row)

    def finish(self) -> None:
        self.settle_event()
        require(self.machine.idle(), "not idle after everything ended")
        require(not any(self.machine.live_bytes(call.id) for call in self.plan.calls), "bytes live at the end")
        require(not self.payloads, "payloads kept for ever:", sorted(self.payloads))
        require(not any(self.machine.ready(module.id) for module in self.plan.modules), "Grains ready at the end")

    def compare(self, m: Microbatch, row: int) -> None:
        """Everything below a terminal source item against the reference."""
        reference = Reference(self.plan, m.outcomes, m.caught)
        self.replay(m, row, reference)
        require(not reference.illegal_catches(), "illegal:", reference.illegal_catches())
        for port in self.plan.ports:
            for path in reference.entities(port.domain, row):
                fact = reference.item(port.id, path)
                found = self.look(m.name, port.id, path)
                require(
                    same(found, fact.outcome, fact.cause),
                    f"{m.name} {port.kind.name} {port.name} at {path}: machine {found}, reference {fact}",
                )
                if port.kind is PortKind.CALL and port.index == 0:
                    m.tally[port.call][fact.outcome.value] += 1
        for key, args in m.dispatched:
            if key[1][0] == row:
                require(reference.args(*key) == args, "arguments of", key, args, "reference", reference.args(*key))
        result = self.machine.result(m.name, row)
        self.results.append(result)
        require(result.row == row, "the result of another row", result)
        outputs = reference.outputs(row)
        for index, fact in enumerate(outputs):
            found = result.outcomes[index], result.causes[index]
            require(same(found, fact.outcome, fact.cause), "output", index, "of", row, found, "reference", fact)
            column = result.columns[index]
            value = None if column is None else decode(column, self.payloads)
            expected = [fact.value] if fact.outcome is ItemOutcome.PRESENT else None
            if self.plan.ports[self.plan.outputs[index]].domain != ROOT:
                equal = value is not None and len(value) == 1 and same_items(value[0], fact.value)
            else:
                equal = value == expected
            require(equal, "output", index, "of", row, "is", value, "reference", expected)
        children = [
            (self.plan.domains[domain].name, path[1:], fact) for domain, path, fact in reference.descendants(row)
        ]
        require(len(children) == len(result.children), "children", result.children, "reference", children)
        for child, (domain, ordinals, fact) in zip(result.children, children, strict=True):
            require(
                (child.domain, child.ordinals) == (domain, ordinals)
                and same((child.outcome, child.cause), fact.outcome, fact.cause),
                "child", child, "reference", domain, ordinals, fact,
            )  # fmt: skip

    def replay(self, m: Microbatch, row: int, reference: Reference) -> None:
        """Learn from the machine which waiting or ready siblings each barrier caught.

        A root cause at the Call itself, in a Grain that did not fail, can only have come over the barrier: what
        happened at a Call never reaches that Call's inputs.
        """
        for call in self.plan.calls:
            for path in reference.entities(call.domain, row):
                found, cause = self.look(m.name, call.outputs[0], path)
                if found is ItemOutcome.SUPPRESSED and cause is not None and cause.call == call.name:
                    trigger = (row, *cause.ordinals)
                    key = (call.id, path)
                    parent = (m.name, m.attempt, call.id, path[:-1])
                    require(self.barriers.get(parent) == trigger, "caught without a barrier", key, cause)
                    require(m.caught.get(key, trigger) == trigger, "caught by two", key)
                    require((m.name, m.attempt, *key) not in self.committed, "caught after its commit", key)
                    m.caught[key] = trigger


def same(found: tuple[ItemOutcome | None, Cause | None], outcome: ItemOutcome, cause: Cause | None) -> bool:
    """The reference leaves the wording of a dropped survivor's cause open: there an empty message matches any."""
    if found[0] is not outcome:
        return False
    if cause is None or found[1] is None:
        return cause is found[1]
    at = (found[1].kind, found[1].call, found[1].domain, found[1].ordinals)
    if at != (cause.kind, cause.call, cause.domain, cause.ordinals):
        return False
    return not cause.message or (found[1].message, found[1].retryable) == (cause.message, cause.retryable)


def same_items(found: list[Any], facts: list[Fact]) -> bool:
    """An output of a child Domain: values where the Items are Present, ``Lost`` in place of the others."""
    return len(found) == len(facts) and all(
        same((item.outcome, item.cause), fact.outcome, fact.cause) if isinstance(item, Lost)
        else fact.outcome is ItemOutcome.PRESENT and item == fact.value
        for item, fact in zip(found, facts, strict=True)
    )  # fmt: skip


def cause_of(failure: RecordFailure | GroupFailure) -> Cause:
    return Cause(failure.kind, str(failure.cause), retryable=failure.retryable)


__all__ = ["ROOT", "Broken", "Driver", "require", "same"]
