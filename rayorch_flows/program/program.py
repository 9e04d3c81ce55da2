"""Program: what a user writes. ``forward`` is traced once with symbolic Ports and never sees data."""

from __future__ import annotations

import inspect
from typing import Any, Literal

from rayorch_flows.program.compiler import compile_trace
from rayorch_flows.program.draw import Drawing, draw
from rayorch_flows.program.plan import Plan, PortKind
from rayorch_flows.program.source_lines import compile_error, definition_line
from rayorch_flows.program.trace import Trace

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Program:
    """A program: modules as attributes, and ``forward``, which wires them.

    Every positional parameter of ``forward`` is a source column; what it returns, a Port or a tuple of Ports, is the
    output.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Wires sources, Calls and ``F`` primitives; to be written by the subclass."""
        raise NotImplementedError

    def compile(self, *, optimize: bool = True) -> Plan:
        """Traces ``forward`` and checks it. ``optimize`` changes nothing: older programs pass it."""
        del optimize
        trace = Trace(type(self).__qualname__.rpartition(".")[2], self)
        names = _source_names(self)
        with trace.activate():
            where = definition_line(type(self).forward)
            sources = [trace.add_port(PortKind.SOURCE, 0, name, index=i, where=where) for i, name in enumerate(names)]
            try:
                returned = self.forward(*sources)
            except RecursionError as error:
                raise compile_error(
                    f"{trace.program}.forward(), or something that it calls, does not end",
                    "A program is finite: nothing in it may call itself without a bound; the traceback shows it.",
                    where,
                ) from error
            return compile_trace(trace, returned, where)

    def draw(self, format: Literal["text", "mermaid"] | None = None) -> Drawing:
        """The compiled graph with Domains as nested frames. A Drawing is a str with ``.text`` and ``.mermaid``;
        ``format`` says which of the two the str itself holds (default: the text)."""
        return draw(self.compile(), format)


def _source_names(program: Program) -> list[str]:
    kind = type(program)
    where = definition_line(kind.forward) if kind.forward is not Program.forward else None
    if kind.forward is Program.forward:
        raise compile_error(
            f"{kind.__name__} has no forward()", "Write forward(self, docs) and return the Port of the result.", where
        )
    parameters = list(inspect.signature(program.forward).parameters.values())
    for parameter in parameters:
        if parameter.kind not in _POSITIONAL:
            raise compile_error(
                f"{kind.__name__}.forward has the parameter {str(parameter)!r}, and each of its parameters is "
                "one source column",
                "Give forward() plain positional parameters; put settings into __init__.",
                where,
            )
    if not parameters:
        raise compile_error(
            f"{kind.__name__}.forward has no source",
            "Give it a parameter for each source column: forward(self, docs).",
            where,
        )
    return [parameter.name for parameter in parameters]
