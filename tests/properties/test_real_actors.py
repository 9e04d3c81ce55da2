"""Random programs with real actors on a local Ray, some killed at random, against the reference."""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import signal
import threading
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from rayorch_flows import Executor, OutputIssue, Plan, SourceOutcome
from rayorch_flows.program.outcomes import ItemOutcome, RecordFailure
from rayorch_flows.program.plan import ROOT
from rayorch_flows.runtime.host import client as host
from rayorch_flows.runtime.host.client import HostClient, MicrobatchProgress, MicrobatchSpec, UnknownMicrobatchError
from tests.properties.pipelines import LENGTHS, Symbolic, odd, pipeline
from tests.properties.programs import Call, Expand, Reader, Reduce, Source, Spec, generate
from tests.reference import Fact, Reference
from tests.reference import Path as EntityPath
from tests.runtime.functions import wait_for

pytestmark = [pytest.mark.ray, pytest.mark.slow]

PROGRAMS = int(os.environ.get("RAYORCH_FLOWS_RAY_PROGRAMS", "6"))
ROWS = 9
BEFORE = 3
"""Source items that are written when the driver is killed."""


class Arguments:
    """The oracle of a Function whose outcome follows from its arguments."""

    def __init__(self, plan: Plan, function: Symbolic, columns: list[list[Any]]) -> None:
        self.plan = plan
        self.function = function
        self.columns = columns

    def source(self, column: int, row: int) -> Any:
        return self.columns[column][row]

    def grain(self, call: int, path: EntityPath, args: tuple[Any, ...]) -> Any:
        returned = self.function.row(args, **dict(self.plan.calls[call].kwargs))
        failures = [value for value in returned if isinstance(value, RecordFailure)]
        return failures[0] if failures else returned


def programs(count: int) -> list[Spec]:
    """Programs that expand and reduce, not too many actors."""
    found: list[Spec] = []
    seed = 5000
    while len(found) < count:
        seed += 1
        spec = generate(Reader(random.Random(seed).randbytes(160)))
        kinds = [type(op) for op in spec.ops]
        if 3 <= kinds.count(Call) <= 6 and Expand in kinds and Reduce in kinds:
            found.append(spec)
    return found


def columns(spec: Spec) -> list[list[Any]]:
    made: list[list[Any]] = []
    for op in spec.ops:
        if isinstance(op, Source):
            names = [f"s{len(made)}/{row}" for row in range(ROWS)]
            lists = [[f"{name}/{i}" for i in range(LENGTHS[row % 8])] for row, name in enumerate(names)]
            flags = [[odd(name) for name in part] for part in lists]
            made.append({"value": names, "list": lists, "flags": flags, "mask": [odd(n) for n in names]}[op.role])
    return made


def shown(fact: Fact) -> Any:
    """What ``SourceOutcome.outputs`` holds for a fact."""
    if fact.outcome is ItemOutcome.PRESENT:
        return fact.value
    return OutputIssue(fact.outcome, fact.cause.message if fact.cause else None)


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("kills", [0, 4])
@pytest.mark.parametrize("which", range(PROGRAMS))
def test_real_actors_end_with_the_facts_of_the_reference(which: int, kills: int, tmp_path: Path) -> None:
    gate = tmp_path / "gate" if kills else None
    spec = programs(PROGRAMS)[which]
    given: dict[str, Any] = {"seed": which, "record": 12}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = pipeline(spec, infra_retries=kills + 1, delay_s=0.05 if kills else 0.0, gate=gate, **given)
        plan = program.compile()
    inputs = columns(spec)
    reference = Reference(plan, Arguments(plan, Symbolic(**given), inputs))
    stop = threading.Event()
    killed: list[int] = []
    with Executor(plan) as executor:
        wait_for(lambda: all(a["ready"] for a in executor._engine.actors()))  # pyright: ignore[reportPrivateUsage]
        killer = threading.Thread(target=kill_actors, args=(executor, kills, gate, stop, killed))
        killer.start()
        try:
            outcomes = list(executor.stream(*inputs, input_batch_size=4, max_active_input_batches=2))
        finally:
            stop.set()
            killer.join()
    assert bool(killed) == bool(kills)
    check(plan, spec, reference, outcomes)


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("which", range(2))
def test_a_driver_that_is_killed_and_restarted_ends_with_the_facts_of_the_reference(which: int, tmp_path: Path) -> None:
    """The rest of the microbatch goes to the restarted driver, as a flow run that resumes does it."""
    spec = programs(PROGRAMS)[which]
    given: dict[str, Any] = {"seed": which, "record": 12}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plan = pipeline(spec, infra_retries=2, delay_s=0.2, **given).compile()
    inputs = columns(spec)
    sink = Pickled(tmp_path / "outcomes", tmp_path / "gate")
    client = host.connect(plan, namespace=f"restarted-{os.getpid()}-{which}")
    try:
        client.attach(MicrobatchSpec("m", tuple(inputs), list(range(ROWS)), sink))
        await_poll(client, lambda _: sink.path.exists() and len(sink.read()) == BEFORE)
        os.kill(client.describe()["pid"], signal.SIGKILL)
        with pytest.raises(UnknownMicrobatchError):
            await_poll(client, lambda progress: progress.state in host.FINAL_STATES)
        left = [row for row in range(ROWS) if row not in {outcome.index for outcome in sink.read()}]
        assert len(left) == ROWS - BEFORE
        sink.gate.touch()
        rest = tuple([column[row] for row in left] for column in inputs)
        client.attach(MicrobatchSpec("m", rest, left, sink))
        await_poll(client, lambda progress: progress.state == "done")
    finally:
        client.stop()
    check(plan, spec, Reference(plan, Arguments(plan, Symbolic(**given), inputs)), sink.read())


class Pickled:
    """A sink that appends outcomes to a file, BEFORE of them at once, the others when the file ``gate`` is there; a
    record that a killed driver left unfinished does not count."""

    def __init__(self, path: Path, gate: Path) -> None:
        self.path = path
        self.gate = gate

    def write(self, microbatch: str, attempt: int, outcomes: Sequence[SourceOutcome]) -> None:
        for outcome in outcomes:
            if len(self.done(microbatch)) >= BEFORE:
                wait_for(self.gate.exists, 300)
            with self.path.open("ab") as file:
                file.write(pickle.dumps([outcome]))

    def read(self) -> list[SourceOutcome]:
        found: list[SourceOutcome] = []
        with self.path.open("rb") as file, contextlib.suppress(EOFError, pickle.UnpicklingError):
            while True:
                found += pickle.load(file)
        return found

    def done(self, microbatch: str) -> frozenset[int]:
        return frozenset(outcome.index for outcome in self.read()) if self.path.exists() else frozenset()

    def flush(self, microbatch: str) -> None:
        pass

    def close(self, microbatch: str) -> None:
        pass


def await_poll(client: HostClient, happened: Callable[[MicrobatchProgress], bool]) -> None:
    wait_for(lambda: happened(client.poll("m", 0.05)))


def check(plan: Plan, spec: Spec, reference: Reference, outcomes: Sequence[SourceOutcome]) -> None:
    """Every source item once, with the outputs and the children of the reference."""
    assert sorted(outcome.index for outcome in outcomes) == list(range(ROWS))
    for outcome in outcomes:
        row = outcome.index
        expected: list[Any] = []
        for port, fact in zip(plan.outputs, reference.outputs(row), strict=True):
            child = plan.ports[port].domain != ROOT
            expected.append([shown(item) for item in fact.value] if child else shown(fact))
        assert list(outcome.outputs) == expected, f"{spec}\nsource item {row}"
        found = [(child.domain, child.ordinals, child.outcome, child.cause) for child in outcome.children]
        assert [child[:3] for child in found] == [
            (plan.domains[domain].name, path[1:], fact.outcome) for domain, path, fact in reference.descendants(row)
        ]


def kill_actors(executor: Executor, kills: int, gate: Path | None, stop: threading.Event, killed: list[int]) -> None:
    """SIGKILL to an actor that has work, before any is done; then to one now and then, whatever it is doing."""
    if gate is None:
        return
    actors = executor._engine.actors  # pyright: ignore[reportPrivateUsage]
    rng = random.Random(kills)
    wait_for(lambda: any(actor["in_flight"] for actor in actors()))
    kill(next(actor["pid"] for actor in actors() if actor["in_flight"]), killed)
    gate.touch()
    while len(killed) < kills and not stop.wait(rng.uniform(0.05, 0.3)):
        if ready := [actor["pid"] for actor in actors() if actor["ready"]]:
            kill(rng.choice(ready), killed)


def kill(pid: int, killed: list[int]) -> None:
    killed.append(pid)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
