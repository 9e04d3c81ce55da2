"""What ``forward`` sees instead of data: symbolic edges that can be wired, and nothing else."""

from __future__ import annotations

from typing import Any, NoReturn, Protocol

from rayorch_flows.errors import CompileError
from rayorch_flows.program.source_lines import compile_error


class Wiring(Protocol):
    """The record of ``forward`` that a Port belongs to, as far as a Port has to know it."""

    program: str

    def describe(self, port: int) -> str:
        """The Port as a message names it."""
        ...


class Port:
    """A logical edge of the program that is being traced.

    It has no value, no truth, no length and no equality: ``forward`` runs once, before there is any data.
    """

    __slots__ = ("_id", "_trace")

    def __init__(self, trace: Wiring, id: int) -> None:
        if not hasattr(trace, "describe"):
            raise compile_error(
                "a Port cannot be made by hand",
                "Ports come from the parameters of forward(), from Calls and from F primitives.",
            )
        self._trace = trace
        self._id = id

    @property
    def id(self) -> int:
        """Index of this Port in the compiled ``Plan.ports``."""
        return self._id

    @property
    def trace(self) -> Wiring:
        """The trace that made this Port."""
        return self._trace

    def __repr__(self) -> str:
        return f"<{self._trace.describe(self._id)}>"

    def _refuse(self, what: str, next_step: str) -> CompileError:
        return compile_error(
            f"{self._trace.describe(self._id)} {what}: forward() runs once, before there is any data", next_step
        )

    def __bool__(self) -> NoReturn:
        raise self._refuse(
            "was used as a condition",
            "Keep or drop Items with F.filter(x, mask), or decide for each Item inside a Function.",
        )

    def __iter__(self) -> NoReturn:
        raise self._refuse(
            "was iterated",
            "Use F.expand(x) for the elements of a list, or .returns(n) for a Function with several outputs.",
        )

    def __len__(self) -> NoReturn:
        raise self._refuse("was asked for its length", "Count inside a Function, after F.reduce(x).")

    def __getitem__(self, key: Any) -> NoReturn:
        raise self._refuse(f"was indexed with {key!r}", "Use F.expand(x), or take the part inside a Function.")

    def __contains__(self, value: Any) -> NoReturn:
        raise self._refuse("was searched", "Look inside a Function.")

    def _compare(self, other: Any) -> NoReturn:
        raise self._refuse(
            "was compared", "Compare inside a Function that returns booleans, and use F.filter(x, mask)."
        )

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _compare  # type: ignore[assignment]

    def __hash__(self) -> int:
        return id(self)

    def _calculate(self, other: Any = None) -> NoReturn:
        raise self._refuse("was calculated with", "Calculate inside a Function.")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _calculate
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _calculate
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __matmul__ = _calculate
    __neg__ = __pos__ = __abs__ = __invert__ = __int__ = __float__ = __index__ = _calculate

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise self._refuse("was called", "Call a RayModule with it: self.module(x).")

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(
            f"{self._trace.describe(self._id)} has no attribute {name!r}: it stands for values "
            "that exist only when the program runs. Use them inside a Function."
        )

    def __reduce__(self) -> NoReturn:
        raise self._refuse("was pickled or copied", "Keep Ports inside forward().")


class OptionalPort:
    """``F.optional(x)``: an argument of a Call whose dropped values arrive as ``MISSING``."""

    __slots__ = ("port",)

    def __init__(self, port: Port) -> None:
        self.port = port

    def __repr__(self) -> str:
        return f"F.optional({self.port!r})"
