"""A flow made ready once per process: its definition loaded, its Pipeline compiled."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from rayorch_flows.orchestration.ingest.flow_definition import FlowDefinition, load_flow
from rayorch_flows.orchestration.reporting.progress import plural
from rayorch_flows.orchestration.settings.places import Tuning
from rayorch_flows.program.tuning import tuned

if TYPE_CHECKING:
    from rayorch_flows.program.plan import Plan


@dataclass(frozen=True, slots=True)
class PreparedFlow:
    """``child_noun``: what the flow calls the children of a source item, for people."""

    definition: FlowDefinition
    plan: Plan
    child_noun: str

    @property
    def fingerprint(self) -> str:
        return self.plan.semantic_fingerprint

    def tuned(self, tuning: Tuning) -> PreparedFlow:
        """The same flow with other physical options."""
        return replace(self, plan=tuned(self.plan, tuning.options())) if tuning.calls else self


@lru_cache(maxsize=32)
def prepare(reference: str) -> PreparedFlow:
    definition = load_flow(reference)
    plan = definition.pipeline().compile()
    if reference.rpartition(":")[0].endswith(".py"):
        _ship_by_value(definition)
    noun = plural(plan.domains[1].name) if len(plan.domains) > 1 else "children"
    return PreparedFlow(definition, plan, noun)


def _ship_by_value(definition: FlowDefinition) -> None:
    """Workers cannot import a file that was loaded by its path, so its Functions travel inside the messages."""
    import cloudpickle
    from ray import cloudpickle as ray_cloudpickle

    module = sys.modules.get(getattr(definition.pipeline, "__module__", ""))
    if module is not None and not getattr(module, "__package__", ""):
        cloudpickle.register_pickle_by_value(module)
        ray_cloudpickle.register_pickle_by_value(module)
