"""Small Functions and a way to make a program of one forward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rayorch_flows import Pipeline, RayModule


class Unit:
    """Takes anything, gives one column."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args = args

    def run(self, *columns: Any, **static: Any) -> list[Any]:
        return list(columns[0])


class Pair:
    """Gives two columns."""

    def run(self, *columns: Any) -> tuple[list[Any], list[Any]]:
        return list(columns[0]), list(columns[0])


def program(forward: Callable[..., Any], **modules: RayModule) -> Pipeline:
    """A Pipeline with that forward and the modules a, b, c (one output) and two (two outputs)."""

    class Program(Pipeline):
        def __init__(self) -> None:
            self.a = RayModule(Unit)
            self.b = RayModule(Unit)
            self.c = RayModule(Unit)
            self.two = RayModule(Pair).returns(2)
            for name, module in modules.items():
                setattr(self, name, module)

    Program.forward = forward  # type: ignore[method-assign]
    return Program()
