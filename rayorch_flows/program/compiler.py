"""From a recorded trace to the immutable Plan: the checks that need the whole program, then the freezing."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

from rayorch_flows.errors import CompileError
from rayorch_flows.program.identity.fingerprint import fingerprints
from rayorch_flows.program.options import build_options
from rayorch_flows.program.plan import (
    ROOT,
    Batching,
    CallPlan,
    DomainPlan,
    Layout,
    ModulePlan,
    OutputShape,
    Plan,
    PortKind,
    PortPlan,
    SourceLine,
)
from rayorch_flows.program.ports import OptionalPort, Port
from rayorch_flows.program.source_lines import compile_error, compile_warning
from rayorch_flows.program.trace import ModuleNode, Trace
from rayorch_flows.program.values import pickling
from rayorch_flows.program.values.copies import own
from rayorch_flows.program.values.type_guards import is_tuple


def compile_trace(trace: Trace, returned: Any, where: SourceLine | None) -> Plan:
    """The Plan of a finished trace. ``returned`` is what ``forward`` gave back, ``where`` its definition."""
    outputs: list[int] = []
    layout = _layout(trace, returned, outputs, where)
    for port in outputs:
        trace.use_as_value(port)
    _warn_unused_sources(trace, outputs)
    modules = tuple(_module(trace, i, node) for i, node in enumerate(trace.modules))
    plan = Plan(
        name=trace.program,
        domains=tuple(_domains(trace, outputs)),
        ports=tuple(_ports(trace)),
        calls=tuple(
            CallPlan(i, c.name, c.module, c.domain, c.inputs, c.outputs, c.kwargs, c.where)
            for i, c in enumerate(trace.calls)
        ),
        modules=modules,
        sources=tuple(i for i, port in enumerate(trace.ports) if port.kind is PortKind.SOURCE),
        outputs=tuple(outputs),
        shape=OutputShape.TUPLE if isinstance(layout, tuple) else OutputShape.SINGLE,
        semantic_fingerprint="",
        physical_fingerprint="",
        layout=layout,
    )
    named = {i for i, domain in enumerate(trace.domains) if domain.named}
    semantic, physical = fingerprints(plan, named)
    return Plan(
        name=plan.name,
        domains=plan.domains,
        ports=plan.ports,
        calls=plan.calls,
        modules=plan.modules,
        sources=plan.sources,
        outputs=plan.outputs,
        shape=plan.shape,
        semantic_fingerprint=semantic,
        physical_fingerprint=physical,
        layout=plan.layout,
    )


_MENDS: Final[Mapping[type[Any], str]] = {
    type(None): "End forward() with: return self.last(x).",
    list: "Return a tuple instead of a list: return a, b.",
    dict: "Return a tuple of Ports, or let a last Call build the dict.",
    OptionalPort: "Return the Port itself: F.optional is for a Call's argument.",
}


def _layout(trace: Trace, returned: Any, outputs: list[int], where: SourceLine | None) -> Layout:
    if is_tuple(returned) and returned:
        return tuple(_layout(trace, part, outputs, where) for part in returned)
    if not isinstance(returned, Port):
        kind = cast("type[Any]", type(returned))
        what = "nothing" if returned is None else f"{kind.__name__} ({returned!r:.60})"
        mend = _MENDS.get(kind, "Return the Port of the result.")
        raise compile_error(
            f"{trace.program}.forward() must return a Port or a non-empty tuple of Ports, not {what}", mend, where
        )
    outputs.append(trace.own(returned, f"what {trace.program}.forward() returned"))
    return len(outputs) - 1


def _warn_unused_sources(trace: Trace, outputs: list[int]) -> None:
    used = {i for port in trace.ports for i in port.inputs} | set(outputs)
    used |= {argument.port for call in trace.calls for argument in call.inputs}
    for i, port in enumerate(trace.ports):
        if port.kind is PortKind.SOURCE and i not in used:
            compile_warning(
                f"the source {port.name!r} of {trace.program} is never used, yet every run must bring its column",
                port.where,
            )


def _module(trace: Trace, index: int, node: ModuleNode) -> ModulePlan:
    module = node.module
    index_alone = (
        module.options.get("placement_group_bundle_index", -1) != -1 and "placement_group" not in module.options
    )
    if index_alone:
        raise compile_error(
            f"ray_options(placement_group_bundle_index=...) of {module.label}: expected together with a group",
            "Give placement_group= too.",
            module.where,
        )
    options = build_options(module.options)
    function, name = module.function, node.name
    if isinstance(function, type):
        try:
            inspect.signature(function).bind(*module.args, **module.kwargs)
        except TypeError as error:
            raise compile_error(
                f"module {name!r} cannot construct {module.label}: {error}",
                f"Give the arguments with pre_init(...); the signature is {module.label}{inspect.signature(function)}.",
                module.where,
            ) from None
        except ValueError:  # a builtin without a signature: only the actor can know
            pass
    pickling.send_code_of(function)
    for what, value, where in _parts(trace, index, node):
        _check_pickles(value, what, where)
    if options.batching is Batching.PARENT_BOUND:
        for call in trace.calls:
            if call.module == index and call.domain == ROOT:
                raise compile_error(
                    f'Call {call.name!r} is in the root Domain, where batching="parent_bound" has no parent to bind to',
                    'Use batching="elastic" for it, in a RayModule of its own if the other Calls need parent_bound.',
                    call.where,
                )
    return ModulePlan(
        id=index,
        name=name,
        function=own(function),
        args=tuple(own(value) for value in module.args),
        kwargs=tuple((name, own(value)) for name, value in sorted(module.kwargs.items())),
        outputs=node.outputs,
        options=options,
        where=module.where,
    )


def _parts(trace: Trace, index: int, node: ModuleNode) -> Iterator[tuple[str, Any, SourceLine | None]]:
    """What has to travel to an actor, with the words that name it."""
    module = node.module
    yield f"the Function {module.label} of module {node.name!r}", module.function, module.where
    for name, value in [*enumerate(module.args), *module.kwargs.items()]:
        yield f"pre_init argument {name!r} of module {node.name!r}", value, module.where
    for name, value in module.options.items():
        yield f"ray_options({name}=...) of module {node.name!r}", value, module.where
    for call in trace.calls:
        if call.module == index:
            for name, value in call.kwargs:
                yield f"static argument {name!r} of Call {call.name!r}", value, call.where


def _check_pickles(value: Any, what: str, where: SourceLine | None) -> None:
    if value is None or type(value) in (bool, int, float, str, bytes):
        return
    try:
        pickling.dumps(value)
    except CompileError as error:  # a Port inside: the line is where the value was said, not where it is pickled
        raise compile_error(error.message, error.next_step, where, here=False) from None
    except Exception as error:
        raise compile_error(
            f"{what} cannot be pickled, so it cannot reach an actor: {type(error).__name__}: {error}",
            "Open files, locks, clients and models in the Function's __init__, which runs in the actor; "
            "pass only what they are made from.",
            where,
        ) from error


def _domains(trace: Trace, outputs: list[int]) -> Iterator[DomainPlan]:
    for i, domain in enumerate(trace.domains):
        yield DomainPlan(
            id=i,
            name=domain.name,
            parent=domain.parent,
            depth=domain.depth,
            groups=domain.groups,
            ports=domain.ports,
            result=_result(trace, i, outputs),
            where=domain.where,
        )


def _result(trace: Trace, domain: int, outputs: list[int]) -> int:
    """The Port whose outcomes describe the Domain's Entities."""
    inside = [i for i, port in enumerate(trace.ports) if port.domain == domain]
    if domain == ROOT:
        return outputs[0] if trace.ports[outputs[0]].domain == ROOT else inside[-1]
    for port in trace.ports:
        if port.kind is PortKind.REDUCE and trace.ports[port.inputs[0]].domain == domain:
            value = port.inputs[0]
            while trace.ports[value].kind is PortKind.SETTLE:
                value = trace.ports[value].inputs[0]
            return value
    return inside[-1]


def _ports(trace: Trace) -> Iterator[PortPlan]:
    for i, port in enumerate(trace.ports):
        yield PortPlan(
            id=i,
            kind=port.kind,
            domain=port.domain,
            name=port.name,
            inputs=port.inputs,
            call=port.call,
            index=port.index,
            holder=port.holder,
            as_value=port.as_value,
            as_group=port.as_group,
            as_mask=port.as_mask,
            depth=port.depth,
            where=port.where,
        )
