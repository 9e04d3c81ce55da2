"""The record of one run of ``forward``: what the structural primitives and the Calls have wired so far."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol

from rayorch_flows.program.plan import NO_ID, ROOT, InputPlan, PortKind, SourceLine
from rayorch_flows.program.ports import OptionalPort, Port
from rayorch_flows.program.source_lines import caller_line, compile_error

MAX_PORTS = 100_000
"""A forward() that makes more Ports than this is taken for one that never ends."""

ROOT_NAME = "source"

_ACTIVE: ContextVar[Trace | None] = ContextVar("rayorch_flows_trace", default=None)

_PASSING = (PortKind.FILTER, PortKind.BROADCAST, PortKind.SETTLE)


@dataclass(slots=True)
class PortNode:
    kind: PortKind
    domain: int
    name: str
    inputs: tuple[int, ...]
    call: int
    index: int
    holder: int
    depth: int
    where: SourceLine | None
    as_value: bool = False
    as_group: int = NO_ID
    as_mask: bool = False


@dataclass(slots=True)
class DomainNode:
    name: str
    parent: int
    depth: int
    groups: tuple[int, ...] = ()
    ports: tuple[int, ...] = ()
    named: bool = False
    where: SourceLine | None = None


@dataclass(slots=True)
class CallNode:
    name: str
    module: int
    domain: int
    inputs: tuple[InputPlan, ...]
    outputs: tuple[int, ...]
    kwargs: tuple[tuple[str, Any], ...]
    where: SourceLine | None


class Declared(Protocol):
    """What a program declares of a module, as far as the compiler has to know it."""

    @property
    def label(self) -> str: ...
    @property
    def where(self) -> SourceLine | None: ...
    @property
    def function(self) -> Any: ...
    @property
    def args(self) -> tuple[Any, ...]: ...
    @property
    def kwargs(self) -> dict[str, Any]: ...
    @property
    def options(self) -> dict[str, Any]: ...


@dataclass(slots=True)
class ModuleNode:
    name: str
    module: Declared
    outputs: int


@dataclass(slots=True)
class _Names:
    """Hands out each name once: the second ``ocr`` is ``ocr#2``."""

    used: dict[str, int] = field(default_factory=dict[str, int])

    def take(self, name: str) -> str:
        candidate = name
        while candidate in self.used:
            self.used[name] += 1
            candidate = f"{name}#{self.used[name]}"
        self.used[candidate] = 1
        return candidate

    def free(self, name: str) -> bool:
        return name not in self.used


class Trace:
    """Everything one run of ``forward`` has made. Ports only refer to earlier Ports, so the graph has no cycle."""

    def __init__(self, program: str, owner: object) -> None:
        self.program = program
        self.owner = owner
        self.ports: list[PortNode] = []
        self.domains: list[DomainNode] = [DomainNode(ROOT_NAME, NO_ID, 0)]
        self.calls: list[CallNode] = []
        self.modules: list[ModuleNode] = []
        self._module_ids: dict[int, int] = {}
        self._port_names = _Names()
        self._call_names = _Names()
        self._module_names = _Names()
        self._domain_names = _Names({ROOT_NAME: 1})

    # -- what is active ---------------------------------------------------------------------------------------

    @contextmanager
    def activate(self) -> Generator[None]:
        token = _ACTIVE.set(self)
        try:
            yield
        finally:
            _ACTIVE.reset(token)

    @staticmethod
    def active(what: str) -> Trace:
        """The trace that is being recorded, for the primitive or Call named ``what``."""
        trace = _ACTIVE.get()
        if trace is None:
            raise compile_error(
                f"{what} was used outside Pipeline.forward()",
                "Move it into forward(); outside of it there are no Ports.",
            )
        return trace

    # -- what messages say ------------------------------------------------------------------------------------

    def describe(self, port: int) -> str:
        node = self.ports[port]
        call = f", Call {self.calls[node.call].name!r}" if node.call != NO_ID else ""
        line = f", made at line {node.where.line}" if node.where else ""
        return f"Port {node.name!r} (Domain {self.domains[node.domain].name!r}{call}{line})"

    def domain_story(self, domain: int) -> str:
        """A Domain with how it was made: the user's expand, or the sources."""
        node = self.domains[domain]
        if domain == ROOT:
            return f"the root Domain {node.name!r}"
        line = f" at line {node.where.line}" if node.where else ""
        groups = ", ".join(self.ports[g].name for g in node.groups)
        return f"Domain {node.name!r} (F.expand of {groups}{line})"

    # -- checks -----------------------------------------------------------------------------------------------

    def own(self, value: Any, what: str) -> int:
        """The id of a Port that was made by this trace."""
        if isinstance(value, OptionalPort):
            raise compile_error(
                f"{what} is F.optional(...), which only says how a Call takes an argument",
                "Give the Port itself here, and F.optional(x) to the Call: self.module(F.optional(x)).",
            )
        if not isinstance(value, Port):
            raise compile_error(
                f"{what} must be a Port, not {type(value).__name__} ({_short(value)})",
                "Pass a source, a Call's output, or the result of an F primitive.",
            )
        if value.trace is not self:
            raise compile_error(
                f"{what} is {value.trace.describe(value.id)} of another program ({value.trace.program!r})",
                "Make every Port in the same forward() that uses it; never keep one on self or in a global.",
            )
        return value.id

    def same_domain(self, ports: Sequence[int], what: str, next_step: str) -> int:
        """The one Domain of several Ports."""
        first = self.ports[ports[0]].domain
        for port in ports[1:]:
            if self.ports[port].domain != first:
                raise compile_error(
                    f"{what} must be in one Domain, but {self.describe(ports[0])} is in "
                    f"{self.domain_story(first)} and {self.describe(port)} in "
                    f"{self.domain_story(self.ports[port].domain)}",
                    next_step,
                )
        return first

    def is_ancestor(self, ancestor: int, domain: int) -> bool:
        """Whether ``ancestor`` is ``domain`` or above it."""
        while domain != NO_ID:
            if domain == ancestor:
                return True
            domain = self.domains[domain].parent
        return False

    def origin(self, port: int) -> tuple[int, bool]:
        """The Port under filters, broadcasts and settles, and whether a settle was among them."""
        settled = False
        while self.ports[port].kind in _PASSING:
            settled = settled or self.ports[port].kind is PortKind.SETTLE
            port = self.ports[port].inputs[0]
        return port, settled

    # -- making things ----------------------------------------------------------------------------------------

    def add_port(
        self,
        kind: PortKind,
        domain: int,
        name: str,
        inputs: tuple[int, ...] = (),
        *,
        call: int = NO_ID,
        index: int = NO_ID,
        where: SourceLine | None = None,
    ) -> Port:
        id = len(self.ports)
        if id >= MAX_PORTS:
            raise compile_error(
                f"forward() of {self.program!r} made more than {MAX_PORTS} Ports",
                "A program is finite: end the loop in forward(). What repeats at run time belongs in a Function.",
            )
        if kind in _PASSING:
            holder, depth = self.ports[inputs[0]].holder, self.ports[inputs[0]].depth
        else:
            holder = id
            depth = self.ports[inputs[0]].depth + 1 if kind is PortKind.REDUCE else 0
        self.ports.append(
            PortNode(
                kind=kind,
                domain=domain,
                name=self._port_names.take(name),
                inputs=inputs,
                call=call,
                index=index,
                holder=holder,
                depth=depth,
                where=where or caller_line(),
            )
        )
        return Port(self, id)

    def use_as_value(self, port: int) -> None:
        """Note that somebody looks at this Port's values; what really holds them has to keep them."""
        holder = self.ports[self.ports[port].holder]
        if holder.kind is not PortKind.REDUCE:
            holder.as_value = True

    def add_domain(self, groups: tuple[int, ...], name: str | None) -> tuple[Port, ...]:
        """A child Domain whose Entities are the elements of ``groups``, and its EXPAND Ports."""
        parent = self.ports[groups[0]].domain
        first = self.ports[groups[0]]
        base = first.name
        if len(groups) > 1 and first.call != NO_ID:
            base = self.calls[first.call].name
        if name is not None and not self._domain_names.free(name):
            raise compile_error(
                f"there is already a Domain {name!r} in {self.program!r}", "Give each F.expand its own name."
            )
        id = len(self.domains)
        node = DomainNode(
            name=self._domain_names.take(name if name is not None else f"{base}[]"),
            parent=parent,
            depth=self.domains[parent].depth + 1,
            groups=groups,
            named=name is not None,
            where=caller_line(),
        )
        self.domains.append(node)
        ports = tuple(
            self.add_port(PortKind.EXPAND, id, node.name if len(groups) == 1 else f"{node.name}.{i}", (group,))
            for i, group in enumerate(groups)
        )
        node.ports = tuple(port.id for port in ports)
        for group in groups:
            self.ports[group].as_group = id
        return ports

    def add_call(
        self,
        module: Declared,
        name: str,
        outputs: int,
        inputs: tuple[InputPlan, ...],
        domain: int,
        kwargs: tuple[tuple[str, Any], ...],
    ) -> tuple[Port, ...]:
        where = caller_line()
        index = self._module_ids.get(id(module))
        if index is None:
            index = self._module_ids[id(module)] = len(self.modules)
            self.modules.append(ModuleNode(self._module_names.take(name), module, outputs))
        elif self.modules[index].outputs != outputs:
            raise compile_error(
                f"module {self.modules[index].name!r} returned {self.modules[index].outputs} outputs "
                f"in an earlier Call and {outputs} in this one",
                "Set .returns(n) once, before the module is used.",
                where,
            )
        call = len(self.calls)
        call_name = self._call_names.take(self.modules[index].name)
        for argument in inputs:
            self.use_as_value(argument.port)
        node = CallNode(call_name, index, domain, inputs, (), kwargs, where)
        self.calls.append(node)
        ports = tuple(
            self.add_port(
                PortKind.CALL,
                domain,
                call_name if outputs == 1 else f"{call_name}.{i}",
                call=call,
                index=i,
                where=where,
            )
            for i in range(outputs)
        )
        node.outputs = tuple(port.id for port in ports)
        return ports


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
