"""The published library as a peer: the same program, the same inputs, the same outputs and outcomes.

Random programs over what both offer, and the peer's own deterministic pipelines with nothing but the import changed.
Group failures come in a set of their own, over programs in which what a barrier still caught cannot reach a root
Item: there both have to agree without knowing each other's schedule.
"""

from __future__ import annotations

import importlib
import inspect
import os
import random
import warnings
from collections import Counter
from functools import cache
from typing import Any

import pytest

import rayorch_flows
from rayorch_flows.program.plan import ROOT
from tests.properties.pipelines import pipeline
from tests.properties.programs import (
    LISTS,
    Call,
    Expand,
    Filter,
    Generator,
    Made,
    Op,
    Reader,
    Reduce,
    Settle,
    Source,
    Spec,
    lower,
)

rayorch = pytest.importorskip("rayorch")
pytestmark = [pytest.mark.ray, pytest.mark.slow]

PROGRAMS = int(os.environ.get("RAYORCH_FLOWS_PEER_PROGRAMS", "5"))


class Common(Generator):
    """Programs over what both libraries offer: no settle, no optional arguments, only a Call's output is expanded.

    ``plain``: a caught sibling can only reach a parent that is suppressed anyway.
    """

    def __init__(self, reader: Reader, plain: bool) -> None:
        super().__init__(reader)
        self.plain = plain

    def add(self, op: Op, *made: Made) -> int:
        if isinstance(op, Source) and op.role in LISTS:
            op, made = Source(), (Made(ROOT, "value"),)
        return super().add(op, *made)

    def settle(self) -> bool:
        return False

    def filter(self) -> bool:
        return not self.plain and super().filter()

    def program(self) -> Spec:
        spec = super().program()
        ops = [
            Call(op.module, tuple((port, False) for port, _ in op.inputs), op.roles, op.kwargs)
            if isinstance(op, Call)
            else op
            for op in spec.ops
        ]
        return Spec(tuple(ops), spec.modules, spec.outputs, spec.shape)

    def wanted(self, spec: Spec) -> bool:
        """Small, with something to expand; no ``members=`` and no aligned reduce in a plain program."""
        reduces = [op for op in spec.ops if isinstance(op, Reduce)]
        calls = sum(isinstance(op, Call) for op in spec.ops)
        return (
            2 <= calls <= 5
            and len(spec.modules) <= 4
            and any(isinstance(op, Expand) for op in spec.ops)
            and bool(reduces)
            and not (self.plain and any(op.members is not None or len(op.values) > 1 for op in reduces))
        )


@cache
def programs(plain: bool, count: int) -> list[Spec]:
    found: list[Spec] = []
    seed = 0
    while len(found) < count:
        seed += 1
        generator = Common(Reader(random.Random(seed).randbytes(120)), plain)
        spec = generator.program()
        if generator.wanted(spec) and both_compile(spec) and not (plain and outputs_below_root(spec)):
            found.append(spec)
    return found


def outputs_below_root(spec: Spec) -> bool:
    """Outputs of child Domains show which siblings a barrier still caught."""
    plan = lower(spec)
    return any(plan.ports[port].domain != ROOT for port in plan.outputs)


def both_compile(spec: Spec) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pipeline(spec, options=False).compile()
        try:
            pipeline(spec, "rayorch", options=False).compile()
        except rayorch.CompileError:
            return False
    return True


def columns(spec: Spec, rows: int) -> list[list[Any]]:
    made: list[list[Any]] = []
    for op in spec.ops:
        if isinstance(op, Source):
            column = len(made)
            made.append([source(op.role, f"s{column}/{row}", row) for row in range(rows)])
    return made


def source(role: str, name: str, row: int) -> Any:
    if role == "list":
        return [f"{name}/{i}" for i in range((3, 0, 1, 2)[row % 4])]
    if role == "flags":
        return [(row + i) % 3 > 0 for i in range((3, 0, 1, 2)[row % 4])]
    return row % 3 > 0 if role == "mask" else name


def ran(library: Any, spec: Spec, inputs: list[list[Any]], address: str, **outcomes: int) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = pipeline(spec, library.__name__, options=False, **outcomes)
        result = library.run(program, *inputs, input_batch_size=3, max_active_input_batches=2, address=address)
    return comparable(result.outputs)


def comparable(value: Any) -> Any:
    """Outputs with every issue as its outcome and cause."""
    if type(value).__name__ == "OutputIssue":
        return (value.outcome.name.lower(), value.cause)
    if isinstance(value, list | tuple):
        return type(value)(comparable(item) for item in value)
    return value


def outcomes_only(value: Any) -> Any:
    if isinstance(value, tuple) and len(value) == 2 and value[0] in ("failed", "dropped", "suppressed"):
        return value[0]
    if isinstance(value, list | tuple):
        return type(value)(outcomes_only(item) for item in value)
    return value


@pytest.mark.parametrize("which", range(PROGRAMS))
def test_a_random_program_means_the_same(ray_cluster: str, which: int) -> None:
    spec = programs(plain=False, count=PROGRAMS)[which]
    inputs = columns(spec, 7)
    ours = ran(rayorch_flows, spec, inputs, ray_cluster, seed=which, record=12)
    theirs = ran(rayorch, spec, inputs, ray_cluster, seed=which, record=12)
    assert outcomes_only(ours) == outcomes_only(theirs), f"{spec}\nours {ours}\ntheirs {theirs}"


@pytest.mark.parametrize("which", range(PROGRAMS // 2))
def test_group_failures_mean_the_same(ray_cluster: str, which: int) -> None:
    spec = programs(plain=True, count=PROGRAMS // 2)[which]
    inputs = columns(spec, 6)
    ours = ran(rayorch_flows, spec, inputs, ray_cluster, seed=which, group=30)
    theirs = ran(rayorch, spec, inputs, ray_cluster, seed=which, group=30)
    assert outcomes_only(ours) == outcomes_only(theirs), f"{spec}\nours {ours}\ntheirs {theirs}"


def with_our_import(module: str) -> Any:
    """The module's source with ``from rayorch import`` changed to ours, and nothing else."""
    source = inspect.getsource(importlib.import_module(module))
    changed = source.replace("from rayorch import", "from rayorch_flows import")
    assert changed != source
    package = module.rpartition(".")[0]
    namespace: dict[str, Any] = {"__name__": f"{package}.changed", "__package__": package}
    exec(compile(changed, f"{module} with our import", "exec"), namespace)
    return namespace


BUNDLED = {
    "document_topology": (
        "DocumentTopologyPipeline",
        [(f"doc{i}", [(2, 0, 3), (1,), (0, 0)][i % 3]) for i in range(7)],
    ),
    "video_multimodal": ("VideoMultimodalTopologyPipeline", [(f"video{i}", 2 + i % 3, 1 + i % 2) for i in range(7)]),
}


@pytest.mark.parametrize("name", BUNDLED)
def test_a_bundled_pipeline_runs_here_with_only_the_import_changed(ray_cluster: str, name: str) -> None:
    class_name, inputs = BUNDLED[name]
    module = f"rayorch.benchmarks.{name}.pipeline"
    ours = with_our_import(module)[class_name](workers=1)
    theirs = getattr(importlib.import_module(module), class_name)(workers=1)
    expected = rayorch.run(theirs, inputs, address=ray_cluster).outputs
    found = rayorch_flows.run(ours, inputs, input_batch_size=3, max_active_input_batches=2, address=ray_cluster).outputs
    assert found == expected
    assert len(found) == len(inputs)


def test_the_generator_covers_what_both_offer() -> None:
    kinds = Counter(type(op) for plain in (False, True) for spec in programs(plain, 30) for op in spec.ops)
    assert {Source, Call, Expand, Filter, Reduce} <= set(kinds)
    assert Settle not in kinds
