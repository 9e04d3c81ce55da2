"""Other physical options for a Plan that is compiled already: how it runs changes, what its records mean does not."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from rayorch_flows.program.identity.fingerprint import physical_fingerprint
from rayorch_flows.program.options import build_options, check_options
from rayorch_flows.program.plan import ModulePlan, Options, Plan
from rayorch_flows.program.source_lines import compile_error


def tuned(plan: Plan, changes: Mapping[str, Mapping[str, Any]]) -> Plan:
    """The Plan with these ``ray_options`` for these Calls; a module's name stands for all its Calls.

    Options that are not named stay as the program says. Calls of one module share its actors, so what is said for one
    of them counts for all. The semantic fingerprint stays, the physical one follows the options.
    """
    found: dict[int, dict[str, Any]] = {}
    said: dict[tuple[int, str], str] = {}
    for name, options in changes.items():
        module = _module(plan, name)
        for option, value in check_options(options, f"module {module.name!r}", module.where).items():
            first = said.setdefault((module.id, option), name)
            if found.setdefault(module.id, {}).setdefault(option, value) != value:
                raise compile_error(
                    f"{first!r} and {name!r} are Calls of one module and share its actors, but have different {option}",
                    f"Say {option} for one of them only.",
                    here=False,
                )
    modules = tuple(
        replace(module, options=_merged(module.options, found[module.id])) if module.id in found else module
        for module in plan.modules
    )
    changed = replace(plan, modules=modules)
    return replace(changed, physical_fingerprint=physical_fingerprint(changed))


def _module(plan: Plan, name: str) -> ModulePlan:
    for module in plan.modules:
        if module.name == name:
            return module
    for call in plan.calls:
        if call.name == name:
            return plan.modules[call.module]
    known = [call.name for call in plan.calls]
    close = difflib.get_close_matches(name, known, n=1)
    raise compile_error(
        f"{plan.name} has no Call named {name!r}",
        f"Did you mean {close[0]!r}?" if close else f"Its Calls are: {', '.join(known)}.",
        here=False,
    )


def _merged(options: Options, changes: Mapping[str, Any]) -> Options:
    own = {field.name: getattr(options, field.name) for field in fields(options) if field.name != "actor"}
    return build_options({**own, **dict(options.actor), **changes})
