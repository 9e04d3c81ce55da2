"""Small programs with outcomes written out by hand, run through machine and reference at once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rayorch_flows.program.outcomes import CauseKind, GroupFailure, ItemOutcome, RecordFailure
from rayorch_flows.program.plan import NO_ID, Options, OutputShape, Plan
from tests.properties.driver import Driver
from tests.properties.programs import Call, Module, Op, Reader, Role, Spec, lower
from tests.properties.world import Outcomes, Poison, Symbol, frozen
from tests.reference import Path, Reference

FAIL = RecordFailure("broken", CauseKind.CORRUPT)
GROUP = GroupFailure("broken group", CauseKind.ENCRYPTED)
BATCHES_OF_4 = Options(batch_size=4)


class Script(Outcomes):
    """Outcomes by hand: ``grains`` maps (Call, Entity) to a failure, the length of a list, or a mask.

    What it does not mention is Present, a list of two, and true. ``sources`` maps (column, row) likewise.
    """

    def __init__(
        self,
        plan: Plan,
        grains: dict[tuple[int, Path], Any] | None = None,
        sources: dict[tuple[int, int], Any] | None = None,
        poison: dict[tuple[int, Path], Poison] | None = None,
        name: str = "mb0",
    ) -> None:
        super().__init__(plan, name=name)
        self.grains = grains or {}
        self.sources = sources or {}
        self.poisoned = poison or {}

    def source(self, column: int, row: int) -> Any:
        said = self.sources.get((column, row))
        if isinstance(said, RecordFailure):
            return said
        return self.made(self.plan.sources[column], said, (row,), ("source", self.name, column, row))

    def grain(self, call: int, path: Path, args: tuple[Any, ...]) -> Any:
        if (call, path) in self.isolated:
            return self.isolated[call, path]
        said = self.grains.get((call, path))
        if isinstance(said, RecordFailure | GroupFailure):
            return said
        outputs = self.plan.calls[call].outputs
        key = (self.name, call, *(frozen(arg) for arg in args))
        return tuple(self.made(port, said, path, (self.plan.ports[port].index, *key)) for port in outputs)

    def made(self, port: int, said: Any, path: Path, key: tuple[Any, ...]) -> Any:
        plan = self.plan.ports[port]
        if plan.as_group != NO_ID:
            if isinstance(said, list):
                return said
            length = 2 if said is None else int(said)
            return self.elements(plan.as_group, port, length, path, ("element", *key))
        if plan.as_mask:
            return said is not False
        return self.symbols("output", *key)

    def poison(self, call: int, path: Path) -> Poison | None:
        return self.poisoned.get((call, path))


VALUE: tuple[Role, ...] = ("value",)
LIST: tuple[Role, ...] = ("list",)
MASK: tuple[Role, ...] = ("mask",)


def call(module: int, *ports: int, roles: tuple[Role, ...] = VALUE, optional: tuple[int, ...] = ()) -> Call:
    """A Call of these Ports; those in ``optional`` are optional arguments."""
    return Call(module, tuple((port, port in optional) for port in ports), roles)


def step(driver: Driver, *events: tuple[str, int]) -> None:
    """Reserve for, or complete at, the first actor of a module."""
    for event, module in events:
        getattr(driver, event)((module, 0))


def program(
    *ops: Op, outputs: Iterable[int], options: Options = BATCHES_OF_4, shape: OutputShape | None = None
) -> Plan:
    """A Plan of these ops; every module has the same options."""
    calls = [op for op in ops if isinstance(op, Call)]
    modules = tuple(
        Module(next((len(c.roles) for c in calls if c.module == i), 1), options)
        for i in range(max((c.module for c in calls), default=-1) + 1)
    )
    ports = tuple(outputs)
    default = OutputShape.SINGLE if len(ports) == 1 else OutputShape.TUPLE
    return lower(Spec(ops, modules, ports, shape or default))


def run(script: Script, rows: int = 1, schedule: bytes = b"", **knobs: Any) -> Driver:
    """Run to the end; the driver holds every fact of the machine against the reference."""
    driver = Driver(script.plan, Reader(schedule), microbatches=[(rows, script)], **knobs)
    driver.run()
    return driver


def meaning(script: Script, rows: int = 1) -> list[tuple[Any, ...]]:
    """What each source item's outputs mean, after machine and reference agreed: short forms, one tuple a row.

    A Present value is its shape (``.`` for a value, lists for lists, Holes and MISSING as they are); the other
    outcomes are their names.
    """
    driver = run(script, rows)
    caught = next(iter(driver.microbatches.values())).caught
    reference = Reference(script.plan, script, caught)
    return [
        tuple(
            shape(fact.value) if fact.outcome is ItemOutcome.PRESENT else fact.outcome.value
            for fact in reference.outputs(row)
        )
        for row in range(rows)
    ]


def shape(value: Any) -> Any:
    if isinstance(value, list):
        return [shape(item) for item in value]
    return "." if isinstance(value, Symbol) else value
