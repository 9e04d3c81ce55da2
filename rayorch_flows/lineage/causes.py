"""The root cause of an Item that is not Present, found on demand: the first in argument or ordinal order."""

from __future__ import annotations

from collections.abc import Iterable

from rayorch_flows.lineage.facts import Microbatch
from rayorch_flows.lineage.tables import MEMBER_RULE, VALUE_RULE, Verdict
from rayorch_flows.program.outcomes import Cause, CauseKind, OutcomeCode
from rayorch_flows.program.plan import PortKind

_FAILING = (OutcomeCode.FAILED, OutcomeCode.SUPPRESSED)


def cause_of(microbatch: Microbatch, port: int, entity: int) -> Cause | None:
    """Why this Item is Failed or Suppressed; None if it is neither."""
    if microbatch.ports[port].outcome[entity] not in _FAILING:
        return None
    blamed = microbatch.ports[port].blamed.get(entity)
    if blamed is not None:
        return blamed
    plan = microbatch.index.plan
    spec = plan.ports[port]
    if spec.kind is PortKind.CALL:
        inputs = (i.port for i in plan.calls[spec.call].inputs)
        return _first(microbatch, inputs, entity)
    if spec.kind is PortKind.FILTER:
        return _first(microbatch, spec.inputs, entity)
    if spec.kind is PortKind.BROADCAST:
        source = spec.inputs[0]
        ancestor_domain = plan.ports[source].domain
        return cause_of(microbatch, source, microbatch.ancestor(spec.domain, entity, ancestor_domain))
    if spec.kind is PortKind.REDUCE:
        return _reduce_cause(microbatch, port, entity)
    raise AssertionError(f"{spec.name} at {entity} is not Present and nobody is to blame")


def _first(microbatch: Microbatch, ports: Iterable[int], entity: int) -> Cause | None:
    for port in ports:
        if microbatch.ports[port].outcome[entity] in _FAILING:
            return cause_of(microbatch, port, entity)
    return None


def _reduce_cause(microbatch: Microbatch, port: int, parent: int) -> Cause | None:
    plan = microbatch.index.plan
    value, members = plan.ports[port].inputs
    domain = plan.domains[plan.ports[value].domain]
    state = microbatch.domains[domain.id]
    if state.expansion[parent] != OutcomeCode.PRESENT:
        return state.blamed.get(parent) or _first(microbatch, domain.groups, parent)
    children = state.children(parent)
    outcomes = microbatch.ports[members].outcome
    for child in children:
        if MEMBER_RULE[outcomes[child]] == Verdict.SUPPRESS:
            return cause_of(microbatch, members, child)
    values = microbatch.ports[value].outcome
    for child in children:
        if outcomes[child] == OutcomeCode.PRESENT and VALUE_RULE[values[child]] == Verdict.SUPPRESS:
            return cause_of(microbatch, value, child) or Cause(
                CauseKind.CONTRACT,
                f"{plan.ports[value].name} was dropped for a member that survives in {plan.ports[members].name}",
                domain=domain.name,
                ordinals=microbatch.ordinals(domain.id, child),
            )
    return None
