"""The contract of the engine: every legal schedule ends with the facts of the reference interpreter."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.properties.case import Case, check, failure, seeded, shrink
from tests.properties.programs import Reader, generate, lower

PROGRAMS = int(os.environ.get("RAYORCH_FLOWS_PROGRAMS", "2000"))
CHUNKS = 10


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_legal_schedule_ends_with_the_facts_of_the_reference(chunk: int) -> None:
    """``RAYORCH_FLOWS_PROGRAMS`` (2,000) random programs, data, outcomes and schedules; a failure is shrunk."""
    for seed in range(chunk * PROGRAMS // CHUNKS, (chunk + 1) * PROGRAMS // CHUNKS):
        try:
            check(seeded(seed))
        except Exception:
            kind = failure(seeded(seed))
            case = shrink(seeded(seed), lambda candidate, kind=kind: failure(candidate) == kind, budget=1500)
            print(f"seed {seed}, shrunk: {case}")
            check(case)
            raise


@settings(max_examples=100, deadline=None, suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large))
@given(
    st.builds(
        Case,
        program=st.binary(max_size=120),
        knobs=st.binary(max_size=12),
        outcomes=st.binary(min_size=1, max_size=64),
        schedule=st.binary(max_size=120),
    )
)
def test_hypothesis_finds_no_schedule_that_differs(case: Case) -> None:
    check(case)


def test_the_generator_draws_what_the_contract_names() -> None:
    """Nested and sibling Domains, every primitive, shared modules, several outputs: none of it is drawn by luck."""
    plans = [lower(generate(Reader(seeded(seed).program))) for seed in range(400)]
    kinds = {port.kind for plan in plans for port in plan.ports}
    assert {kind.name for kind in kinds} == {"SOURCE", "CALL", "EXPAND", "FILTER", "BROADCAST", "REDUCE", "SETTLE"}
    assert {max(d.depth for d in plan.domains) for plan in plans} >= {0, 1, 2, 3}
    assert any(len({d.parent for d in plan.domains[1:]}) < len(plan.domains[1:]) for plan in plans), "siblings"
    assert any(len(d.groups) > 1 for plan in plans for d in plan.domains), "aligned expand"
    assert any(p.inputs[0] != p.inputs[1] for plan in plans for p in plan.ports if p.kind.name == "REDUCE"), "members="
    assert any(len({c.module for c in plan.calls}) < len(plan.calls) for plan in plans), "a shared module"
    assert any(i.optional for plan in plans for c in plan.calls for i in c.inputs), "optional inputs"
    assert any(len(c.outputs) > 1 for plan in plans for c in plan.calls), "several outputs"
    assert any(c.kwargs for plan in plans for c in plan.calls), "static keyword arguments"
    assert any(len(plan.sources) > 1 for plan in plans), "several source columns"
    assert any(p.depth > 1 for plan in plans for p in plan.ports), "nested lists"


def test_a_run_covers_every_kind_of_event() -> None:
    """The schedules really retry, raise barriers, catch siblings, isolate, cancel and abort."""
    covered = sum((check(seeded(seed)).coverage() for seed in range(150)), start=type(check(Case()).coverage())())
    for what in ("barriers", "caught", "isolated", "failed attempts at Grains", "source items"):
        assert covered[what] > 10, what
    assert covered["attempts"] > 200
