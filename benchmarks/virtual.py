"""One driver with the real machine, simulated actors, and a virtual clock."""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from benchmarks import functions, workloads
from rayorch_flows import F, Pipeline, Port, RayModule
from rayorch_flows.lineage.machine import Machine
from rayorch_flows.lineage.protocol import (
    BatchReport,
    Block,
    DispatchBatch,
    MicrobatchDone,
    OutputReport,
    SourceColumn,
    SourceTerminal,
)
from rayorch_flows.runtime.cost import BatchCost

IN_FLIGHT = 2


@dataclass(frozen=True)
class Site:
    """What there is to run on, and what it takes. ``call_s``: the driver's cost of a dispatch batch
    beside the machine."""

    actors: int
    batch: int
    batch_s: Callable[[int], float]
    microbatch: int
    active: int
    call_s: float = 0.0
    openers: int = 64
    open_batch: int = 32
    open_s: float = 0.05
    options: dict[str, Any] = field(default_factory=dict[str, Any])


class Documents(Pipeline):
    def __init__(self, site: Site) -> None:
        super().__init__()
        self.split = RayModule(functions.Split).ray_options(replicas=site.openers, batch_size=site.open_batch)
        self.page = RayModule(functions.TrivialPage).ray_options(
            replicas=site.actors, batch_size=site.batch, **site.options
        )

    def forward(self, documents: Port) -> Port:
        return F.reduce(self.page(F.expand(self.split(documents))))


class Simulation:
    """One driver, its actors, and the clock."""

    def __init__(self, site: Site, documents: workloads.Documents) -> None:
        plan = Documents(site).compile()
        self.site = site
        self.machine = Machine(plan)
        self.pages = documents.pages
        self.split = next(call.id for call in plan.calls if call.name == "split")
        self.page_module = next(call.module for call in plan.calls if call.name == "page")
        self.replicas = [module.options.replicas for module in plan.modules]
        self.waiting = deque(range(0, len(self.pages), site.microbatch))
        self.active: set[str] = set()
        self.first: dict[str, int] = {}
        self.actor_free = [[0.0] * count for count in self.replicas]
        self.holds = [[0] * count for count in self.replicas]
        # By module, then by the number of batches that an actor holds: those actors.
        self.holding: list[list[dict[int, None]]] = [
            [dict.fromkeys(range(count)), *({} for _ in range(IN_FLIGHT))] for count in self.replicas
        ]
        self.running: list[tuple[float, int, int, int, DispatchBatch]] = []
        self.busy = [0.0] * len(plan.modules)
        self.batches = [0] * len(plan.modules)
        self.driver_free = 0.0
        self.driver_busy = 0.0
        self.cost = BatchCost()
        self.block = 0
        self.terminal = 0

    def run(self) -> float:
        """The virtual time at which the last document is complete."""
        self._charge(self._step)
        now = 0.0
        while self.running:
            now, _, module, actor, batch = heapq.heappop(self.running)
            self.driver_free = max(self.driver_free, now)
            self._hold(module, actor, -1)
            self._charge(self._step, batch)
        return max(now, self.driver_free)

    def _charge(self, step: Any, *arguments: Any) -> None:
        """Run a step of the driver and put what it costs on the clock; what it dispatches leaves at its end."""
        start = time.thread_time()
        dispatched = step(*arguments)
        spent = time.thread_time() - start + self.site.call_s * len(dispatched)
        self.driver_free += spent
        self.driver_busy += spent
        for module, actor, batch in dispatched:
            cost = self.site.open_s if batch.call == self.split else self.site.batch_s(batch.size)
            end = max(self.driver_free, self.actor_free[module][actor]) + cost
            self.actor_free[module][actor] = end
            self.busy[module] += cost
            self.batches[module] += 1
            heapq.heappush(self.running, (end, batch.id, module, actor, batch))

    def _step(self, batch: DispatchBatch | None = None) -> list[tuple[int, int, DispatchBatch]]:
        if batch is not None:
            self._learn(batch)
            self.machine.commit(batch.id, BatchReport((), (self._report(batch),)))
        self._take()
        self._admit()
        return self._reserve()

    def _learn(self, batch: DispatchBatch) -> None:
        if batch.call != self.split:
            self.cost.seen(batch.size, self.site.batch_s(batch.size))
            self.machine.learn(batch.call, self.cost.overhead_rows())

    def _report(self, batch: DispatchBatch) -> OutputReport:
        self.block += 1
        if batch.call != self.split:
            return OutputReport(values=(Block(self.block, batch.size, 64 * batch.size),))
        lengths = [
            self.pages[self.first[segment.microbatch] + grain] for segment in batch.segments for grain in segment.grains
        ]
        total = sum(lengths)
        return OutputReport(elements=(Block(self.block, total, 64 * total),), lengths=lengths)

    def _take(self) -> None:
        for instruction in self.machine.instructions():
            if isinstance(instruction, SourceTerminal):
                for index in instruction.rows:
                    self.machine.result(instruction.microbatch, index, children=False)
                    self.machine.taken(instruction.microbatch, index)
                self.terminal += len(instruction.rows)
            elif isinstance(instruction, MicrobatchDone):
                self.active.discard(instruction.microbatch)

    def _admit(self) -> None:
        while self.waiting and len(self.active) < self.site.active:
            first = self.waiting.popleft()
            rows = min(self.site.microbatch, len(self.pages) - first)
            name = str(first)
            self.active.add(name)
            self.first[name] = first
            self.block += 1
            column = SourceColumn(OutputReport(values=(Block(self.block, rows, 64 * rows),)))
            self.machine.admit(name, 1, rows, [column])
        self.machine.draining = not self.waiting

    def _hold(self, module: int, actor: int, more: int) -> None:
        held = self.holds[module][actor]
        self.holds[module][actor] = held + more
        del self.holding[module][held][actor]
        self.holding[module][held + more][actor] = None

    def _reserve(self) -> list[tuple[int, int, DispatchBatch]]:
        """Serve every actor that has room, first those that hold nothing, as the engine does."""
        dispatched: list[tuple[int, int, DispatchBatch]] = []
        for module, count in enumerate(self.replicas):
            if not self.machine.ready(module):
                continue
            for depth in range(IN_FLIGHT):
                idle = 0 if depth else len(self.holding[module][0])
                for actor in list(self.holding[module][depth]):
                    batch = self.machine.reserve(module, idle=idle, workers=count)
                    if batch is None:
                        break
                    dispatched.append((module, actor, batch))
                    self._hold(module, actor, 1)
                    idle -= not depth
                else:
                    continue
                break
        return dispatched
