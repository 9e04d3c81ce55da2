"""The compiler makes of a Pipeline exactly the Plan that the spec was lowered to by hand."""

from __future__ import annotations

import pickle
import warnings
from dataclasses import replace

import pytest

from rayorch_flows.program.plan import Plan
from tests.properties.case import seeded
from tests.properties.pipelines import pipeline
from tests.properties.programs import Reader, Spec, generate, lower


def bare(plan: Plan) -> Plan:
    """A Plan without what only names or locates: names, lines, Functions, keyword arguments,
    Ray's own options, fingerprints."""
    return replace(
        plan,
        name="",
        domains=tuple(replace(d, name="", where=None) for d in plan.domains),
        ports=tuple(replace(p, name="", where=None) for p in plan.ports),
        calls=tuple(replace(c, name="", kwargs=(), where=None) for c in plan.calls),
        modules=tuple(
            replace(m, name="", function=None, args=(), kwargs=(), where=None, options=replace(m.options, actor=()))
            for m in plan.modules
        ),
        semantic_fingerprint="",
        physical_fingerprint="",
    )


def compiled(spec: Spec) -> Plan:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pipeline(spec).compile()


@pytest.mark.parametrize("chunk", range(4))
def test_the_compiler_agrees_with_the_lowering_by_hand(chunk: int) -> None:
    for seed in range(chunk * 50, (chunk + 1) * 50):
        spec = generate(Reader(seeded(seed).program))
        assert bare(compiled(spec)) == bare(lower(spec)), f"seed {seed}\n{spec}"


def test_a_plan_survives_pickling_and_compiles_to_the_same_fingerprints() -> None:
    for seed in range(20):
        spec = generate(Reader(seeded(seed).program))
        plan, again = compiled(spec), compiled(spec)
        assert pickle.loads(pickle.dumps(bare(plan))) == bare(plan)
        assert (plan.semantic_fingerprint, plan.physical_fingerprint) == (
            again.semantic_fingerprint,
            again.physical_fingerprint,
        )
