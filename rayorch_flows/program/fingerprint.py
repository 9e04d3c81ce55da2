"""temporary"""
from __future__ import annotations
import hashlib
from rayorch_flows.program.plan import Plan
def fingerprints(plan: Plan, named: set[int]) -> tuple[str, str]:
    base = repr([(p.kind, p.inputs) for p in plan.ports]) + repr([m.name for m in plan.modules])
    h = hashlib.sha256(base.encode()).hexdigest()
    return h, hashlib.sha256((h + repr([m.options for m in plan.modules])).encode()).hexdigest()
