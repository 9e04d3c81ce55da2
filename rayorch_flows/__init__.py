"""rayorch-flows: PDFs and videos into training records, with lineage, on Ray, watched in Prefect.

A program needs this module only. Ray is imported when something runs, not before.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rayorch_flows.errors import (
    CompileError,
    ExecutionError,
    Fault,
    InfrastructureError,
    RayorchFlowsError,
    SourceError,
    TableError,
    UsageError,
)
from rayorch_flows.program import functional as F
from rayorch_flows.program.draw import Drawing
from rayorch_flows.program.module import RayModule, function
from rayorch_flows.program.outcomes import (
    MISSING,
    Cause,
    CauseKind,
    GroupFailure,
    Hole,
    ItemOutcome,
    RecordFailure,
)
from rayorch_flows.program.plan import Plan
from rayorch_flows.program.ports import Port
from rayorch_flows.program.recovery import RecoveryMode, RecoveryPolicy
from rayorch_flows.runtime.pipeline import Pipeline

if TYPE_CHECKING:
    __version__: str
    from rayorch_flows.lineage.protocol import ChildOutcome
    from rayorch_flows.runtime.executor import Executor, run
    from rayorch_flows.runtime.results import CallMetrics, InputBatchMetrics, OutputIssue, RunResult, SourceOutcome

_LAZY = {
    "CallMetrics": "rayorch_flows.runtime.results",
    "ChildOutcome": "rayorch_flows.lineage.protocol",
    "Executor": "rayorch_flows.runtime.executor",
    "InputBatchMetrics": "rayorch_flows.runtime.results",
    "OutputIssue": "rayorch_flows.runtime.results",
    "RunResult": "rayorch_flows.runtime.results",
    "SourceOutcome": "rayorch_flows.runtime.results",
    "run": "rayorch_flows.runtime.executor",
}

__all__ = [
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
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        value = getattr(importlib.import_module(_LAZY[name]), name)
    elif name == "__version__":
        metadata = importlib.import_module("importlib.metadata")
        try:
            value = metadata.version("rayorch-flows")
        except metadata.PackageNotFoundError:
            value = "0+unknown"
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
