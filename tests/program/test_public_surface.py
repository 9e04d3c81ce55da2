"""What `import rayorch_flows` offers, and what it must not import."""

from __future__ import annotations

import subprocess
import sys

import pytest

import rayorch_flows as ro

SURFACE = {
    "MISSING",
    "CallMetrics",
    "Cause",
    "CauseKind",
    "ChildOutcome",
    "CompileError",
    "Drawing",
    "ExecutionError",
    "Executor",
    "F",
    "Fault",
    "GroupFailure",
    "Hole",
    "InfrastructureError",
    "InputBatchMetrics",
    "ItemOutcome",
    "OutputIssue",
    "Pipeline",
    "Plan",
    "Port",
    "RayModule",
    "RayorchFlowsError",
    "RecordFailure",
    "RecoveryMode",
    "RecoveryPolicy",
    "RunResult",
    "SourceError",
    "SourceOutcome",
    "TableError",
    "UsageError",
    "__version__",
    "function",
    "run",
}


def test_the_list_is_pinned():
    assert set(ro.__all__) == SURFACE
    assert sorted(ro.__all__, key=str.lower) == sorted(SURFACE, key=str.lower)
    assert set(dir(ro)) == SURFACE


@pytest.mark.parametrize("name", sorted(SURFACE))
def test_every_name_is_there(name):
    assert getattr(ro, name) is not None


def test_the_primitives_are_pinned():
    assert sorted(ro.F.__all__) == [
        "broadcast",
        "expand",
        "expand_aligned",
        "filter",
        "optional",
        "reduce",
        "reduce_aligned",
        "settle",
    ]


def test_a_name_that_is_not_there():
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        ro.nothing  # noqa: B018


def test_a_program_is_written_and_compiled_without_ray_prefect_or_arrow():
    script = """
import sys
import rayorch_flows as ro
class Unit:
    def run(self, xs): return xs
class Program(ro.Pipeline):
    def __init__(self): self.unit = ro.RayModule(Unit)
    def forward(self, xs): return self.unit(xs)
Program().draw()
print(sorted({"ray", "prefect", "pyarrow", "numpy", "deltalake"} & sys.modules.keys()))
"""
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_old_names_of_the_errors_still_catch():
    assert issubclass(ro.CompileError, ValueError)
    assert issubclass(ro.ExecutionError, RuntimeError)


def test_every_public_object_has_a_docstring():
    for name in SURFACE - {"MISSING", "__version__"}:
        assert (getattr(ro, name).__doc__ or "").strip(), name
    for name in ro.F.__all__:
        assert getattr(ro.F, name).__doc__, name
