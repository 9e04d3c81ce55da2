"""The compiled graph as text and as Mermaid, with the Domains as nested frames."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

from rayorch_flows.program.plan import ROOT, DomainPlan, Plan, PortKind

Format = Literal["text", "mermaid"]

_PRIMITIVES: Final = {
    PortKind.FILTER: "filter",
    PortKind.REDUCE: "reduce",
    PortKind.SETTLE: "settle",
    PortKind.BROADCAST: "broadcast",
}


class Drawing(str):
    """A picture of a program. As a str it is the format that was asked for; ``text`` and ``mermaid`` are both."""

    __slots__ = ("mermaid", "text")

    text: str
    mermaid: str

    def __new__(cls, text: str, mermaid: str, format: Format) -> Drawing:
        drawing = super().__new__(cls, text if format == "text" else mermaid)
        drawing.text = text
        drawing.mermaid = mermaid
        return drawing

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True, slots=True)
class _Node:
    """A box: a source, a Call, the expand that opens a Domain, another primitive, or the output."""

    key: str
    kind: str
    label: str
    domain: int
    inputs: tuple[tuple[str, str], ...]
    """Keys of the nodes it reads, each with the words on the arrow."""


@dataclass(slots=True)
class _Graph:
    nodes: dict[str, _Node] = field(default_factory=dict[str, _Node])
    makers: dict[int, tuple[str, str]] = field(default_factory=dict[int, tuple[str, str]])
    """For each Port the node that makes it and the words for the Port on an arrow (empty: its only output)."""


def draw(plan: Plan, format: Format | None = None) -> Drawing:
    """The picture of a Plan."""
    if format not in (None, "text", "mermaid"):
        raise ValueError(f'format must be "text" or "mermaid", not {format!r}')
    graph = _graph(plan)
    text = "\n".join(_text(plan, graph, ROOT)) + "\n"
    mermaid = "\n".join(_mermaid(plan, graph)) + "\n"
    return Drawing(text, mermaid, format or "text")


def _graph(plan: Plan) -> _Graph:
    graph = _Graph()
    counts: Counter[PortKind] = Counter()
    for port in plan.ports:
        if port.kind is PortKind.CALL:
            _add_call(plan, graph, port.call)
            outputs = len(plan.calls[port.call].outputs)
            graph.makers[port.id] = (f"c{port.call}", f"output {port.index}" if outputs > 1 else "")
            continue
        if port.kind is PortKind.EXPAND:
            domain = plan.domains[port.domain]
            key = f"x{domain.id}"
            if key not in graph.nodes:
                groups = tuple(graph.makers[g] for g in domain.groups)
                graph.nodes[key] = _Node(key, "expand", domain.name, domain.id, groups)
            many = len(domain.ports) > 1
            graph.makers[port.id] = (key, f"list {domain.ports.index(port.id)}" if many else "")
            continue
        key = f"p{port.id}"
        if port.kind is PortKind.SOURCE:
            node = _Node(key, "source", port.name, port.domain, ())
        else:
            counts[port.kind] += 1
            words = f"{_PRIMITIVES[port.kind]} {counts[port.kind]}"
            roles = {PortKind.FILTER: ("", "mask"), PortKind.REDUCE: ("", "members")}.get(port.kind, ("",))
            inputs: list[tuple[str, str]] = []
            for source, role in zip(port.inputs, roles, strict=True):
                maker, output = graph.makers[source]
                inputs.append((maker, ", ".join(w for w in (output, role) if w)))
            if port.kind is PortKind.REDUCE and port.inputs[0] == port.inputs[1]:
                inputs = inputs[:1]
            node = _Node(key, "primitive", words, port.domain, tuple(inputs))
        graph.nodes[key] = node
        graph.makers[port.id] = (key, "")
    for i, output in enumerate(plan.outputs):
        key = f"o{i}"
        label = "output" if plan.layout == 0 else f"output {i}"
        graph.nodes[key] = _Node(key, "output", label, plan.ports[output].domain, (graph.makers[output],))
    return graph


def _add_call(plan: Plan, graph: _Graph, id: int) -> None:
    key = f"c{id}"
    if key in graph.nodes:
        return
    call = plan.calls[id]
    inputs: list[tuple[str, str]] = []
    for argument in call.inputs:
        maker, words = graph.makers[argument.port]
        parts = [words, argument.name and f"{argument.name}=", "optional" if argument.optional else ""]
        inputs.append((maker, ", ".join(p for p in parts if p)))
    static = ", ".join(f"{name}={value!r:.30}" for name, value in call.kwargs)
    label = f"{call.name}({static})" if static else call.name
    graph.nodes[key] = _Node(key, "call", label, call.domain, tuple(inputs))


# -- text ------------------------------------------------------------------------------------------------------


def _text(plan: Plan, graph: _Graph, domain: int) -> Iterator[str]:
    """One frame: its nodes in the order of the program, the frames of its children where they are opened."""
    own = plan.domains[domain]
    body: list[str] = []
    for node in graph.nodes.values():
        if node.kind == "expand" and plan.domains[node.domain].parent == domain:
            body.extend(_text(plan, graph, node.domain))
        elif node.domain == domain and node.kind != "expand":
            body.append(_text_line(graph, node))
    title = f" {own.name} "
    if domain != ROOT and not own.name.endswith("[]"):
        title = f" {own.name}: each of {_sources(graph, f'x{domain}')} "
    width = max([len(title) + 4, *(len(line) + 4 for line in body)])
    yield f"┌─{title}{'─' * (width - len(title) - 3)}┐"
    for line in body:
        yield f"│ {line:<{width - 4}} │"
    yield f"└{'─' * (width - 2)}┘"


def _text_line(graph: _Graph, node: _Node) -> str:
    if node.kind == "source":
        return f"{node.label}: source"
    return f"{node.label} <- {_sources(graph, node.key)}"


def _sources(graph: _Graph, key: str) -> str:
    parts: list[str] = []
    for maker, words in graph.nodes[key].inputs:
        node = graph.nodes[maker]
        name = node.label.partition("(")[0]
        parts.append(f"{name} ({words})" if words else name)
    return ", ".join(parts)


# -- Mermaid ---------------------------------------------------------------------------------------------------

_SHAPES: Final = {
    "source": '(["{}"])',
    "output": '(["{}"])',
    "call": '["{}"]',
    "expand": '{{{{"{}"}}}}',
    "primitive": '(("{}"))',
}


def _mermaid(plan: Plan, graph: _Graph) -> Iterator[str]:
    yield "flowchart TB"
    yield from _mermaid_frame(plan, graph, plan.domains[ROOT], "    ")
    for node in graph.nodes.values():
        for maker, words in node.inputs:
            arrow = f"-->|{_quoted(words)}|" if words else "-->"
            yield f"    {maker} {arrow} {node.key}"


def _mermaid_frame(plan: Plan, graph: _Graph, domain: DomainPlan, indent: str) -> Iterator[str]:
    yield f"{indent}subgraph d{domain.id}[{_quoted(domain.name)}]"
    inner = indent + "    "
    for node in graph.nodes.values():
        if node.domain == domain.id:
            label = f"each {node.label}" if node.kind == "expand" else node.label
            yield f"{inner}{node.key}{_SHAPES[node.kind].format(_escaped(label))}"
    for child in plan.domains:
        if child.parent == domain.id:
            yield from _mermaid_frame(plan, graph, child, inner)
    yield f"{indent}end"


def _quoted(text: str) -> str:
    return f'"{_escaped(text)}"'


def _escaped(text: str) -> str:
    """Mermaid's own entity codes for what would end a label."""
    return re.sub(r"[^\w\s.,:=()\[\]+*'/-]", lambda m: f"#{ord(m.group())};", text)
