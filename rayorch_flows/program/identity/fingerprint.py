"""The two names of a program: what its records mean, and how it runs.

Both are built bottom up from the Ports, so that the order of independent statements in ``forward``, the names of
attributes and parameters, files and their place do not matter to the semantic one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, Final

from rayorch_flows.program.identity.digest import Unstable, digest, top_package
from rayorch_flows.program.plan import CallPlan, ModulePlan, Plan, PortKind
from rayorch_flows.program.source_lines import compile_error

VERSION: Final = "rayorch-flows/1"


def fingerprints(plan: Plan, named: set[int]) -> tuple[str, str]:
    """The semantic and the physical fingerprint of a Plan; ``named`` Domains got their names from the user."""
    packages = {top_package(module.function) for module in plan.modules} - {"builtins"}
    modules = [_module(module, packages) for module in plan.modules]
    calls: dict[int, str] = {}
    ports: list[str] = []
    domains: dict[int, str] = {0: _join("root", len(plan.sources))}
    for port in plan.ports:
        if port.kind is PortKind.CALL:
            if port.call not in calls:
                call = plan.calls[port.call]
                calls[port.call] = _call(call, modules[call.module], ports, packages)
            own = _join("call", calls[port.call], port.index)
        elif port.kind is PortKind.SOURCE:
            own = _join("source", port.index)
        else:
            own = _join(port.kind.name, *(ports[i] for i in port.inputs))
            if port.kind is PortKind.BROADCAST:
                own = _join(own, domains[port.domain])
            if port.kind is PortKind.EXPAND:
                domain = plan.domains[port.domain]
                if domain.id not in domains:
                    name = domain.name if domain.id in named else ""
                    domains[domain.id] = _join(
                        "domain", domains[domain.parent], name, *(ports[g] for g in domain.groups)
                    )
                own = _join(own, domains[domain.id], domain.ports.index(port.id))
        ports.append(own)
    semantic = _join(
        VERSION,
        plan.layout,
        *(ports[i] for i in plan.outputs),
        "calls",
        *sorted(calls.values()),
        "domains",
        *sorted(domains.values()),
    )
    return semantic, _physical(plan, semantic)


def physical_fingerprint(plan: Plan) -> str:
    """The physical fingerprint of a Plan whose options are not those that it was compiled with."""
    return _physical(plan, plan.semantic_fingerprint)


def _join(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _call(call: CallPlan, module: str, ports: list[str], packages: set[str]) -> str:
    kwargs = [
        (
            name,
            _digest(f"static argument {name!r} of Call {call.name!r}", value, packages, call.where),
        )
        for name, value in call.kwargs
    ]
    inputs = [(ports[i.port], i.optional, i.name) for i in call.inputs]
    return _join(module, inputs, kwargs)


def _module(module: ModulePlan, packages: set[str]) -> str:
    what = f"of module {module.name!r}"
    return _join(
        module.outputs,
        _digest(f"the Function {what}", module.function, packages, module.where),
        [_digest(f"pre_init argument {i} {what}", v, packages, module.where) for i, v in enumerate(module.args)],
        [(k, _digest(f"pre_init argument {k!r} {what}", v, packages, module.where)) for k, v in module.kwargs],
    )


def _physical(plan: Plan, semantic: str) -> str:
    modules = [
        (
            module.name,
            [(name, _digest(what, value, set(), module.where)) for name, what, value in _option_parts(module)],
        )
        for module in plan.modules
    ]
    names = [[x.name for x in group] for group in (plan.domains, plan.ports, plan.calls)]
    return _join(semantic, plan.name, names, modules)


def _option_parts(module: ModulePlan) -> Iterator[tuple[str, str, Any]]:
    for field in fields(module.options):
        yield (
            field.name,
            f"option {field.name} of module {module.name!r}",
            getattr(module.options, field.name),
        )


def _digest(what: str, value: Any, packages: set[str], where: Any) -> str:
    try:
        return digest(value, packages=packages)
    except Unstable as error:
        raise compile_error(
            f"{what} has no stable fingerprint ({error}), so records made with it could not be told from others",
            "Pass plain values or objects that can be pickled, and build the rest in the Function's __init__.",
            where,
        ) from error
