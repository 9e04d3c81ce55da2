"""Functions and Pipelines for the runtime's tests. Workers import this module."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rayorch_flows import F, GroupFailure, Pipeline, RayModule, RecordFailure
from rayorch_flows.orchestration.server import processes

CPU = {"num_cpus": 0}


def wait_for(condition: Callable[[], Any], limit_s: float = 120.0) -> None:
    """Return once it happened; the limit is only there for what never will."""
    assert processes.wait_until(condition, limit_s, 0.02), "it did not happen"


class Pages:
    """An integer becomes a list of that many pages; a negative one is a RecordFailure."""

    def run(self, docs: list[int]) -> list[Any]:
        return [list(range(n)) if n >= 0 else RecordFailure(f"negative: {n}") for n in docs]


class AddOne:
    def run(self, values: list[int]) -> list[int]:
        return [value + 1 for value in values]


class Slow(AddOne):
    def __init__(self, seconds: float = 0.05) -> None:
        self.seconds = seconds

    def run(self, values: list[int]) -> list[int]:
        time.sleep(self.seconds)
        return super().run(values)


class Gated(AddOne):
    """Waits for a file, which the test touches, in every batch with a value of ``least`` or more."""

    def __init__(self, gate: Path, least: int = 0) -> None:
        self.gate = gate
        self.least = least

    def run(self, values: list[int]) -> list[int]:
        if max(values) >= self.least:
            wait_for(self.gate.exists, 300)
        return super().run(values)


class Total:
    def run(self, groups: list[list[int]]) -> list[int]:
        return [sum(group) for group in groups]


class Poison:
    """Kills its process, hangs or raises at one value; ``once``: only if that file is not there yet."""

    def __init__(self, value: int, how: str = "kill", once: str | None = None) -> None:
        self.value = value
        self.how = how
        self.once = once

    def run(self, values: list[int]) -> list[int]:
        if self.value in values and not (self.once and Path(self.once).exists()):
            if self.once:
                Path(self.once).touch()
            if self.how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            elif self.how == "hang":
                time.sleep(600)
            elif self.how == "exit":
                raise SystemExit(3)
            else:
                raise Unpicklable(self.value) if self.how == "unpicklable" else ValueError(f"poison {self.value}")
        return [value + 1 for value in values]


class Unpicklable(Exception):
    """An exception that does not survive pickling."""

    def __init__(self, value: int) -> None:
        super().__init__(f"unpicklable {value}")
        self.lock = threading.Lock()


class Returns:
    """Returns something else than it should."""

    def __init__(self, what: str) -> None:
        self.what = what

    def run(self, values: list[int]) -> Any:
        return {
            "short": values[:-1],
            "generator": (value for value in values),
            "none": None,
            "dict": {"a": 1},
            "lock": [threading.Lock() for _ in values],
            "lambda": [lambda: 7 for _ in values],
            "tuple": tuple(values),
            "integers": [1 for _ in values],
            "numpy bools": [np.bool_(value % 2 == 0) for value in values],
            "strings": ["ab" for _ in values],
        }[self.what]


class Two:
    def run(self, values: list[int]) -> tuple[list[int], list[int]]:
        return values, [value * 10 for value in values]


class Unequal:
    def run(self, values: list[int]) -> tuple[list[list[int]], list[list[int]]]:
        return [[0] * value for value in values], [[0] * (value + (value == 3)) for value in values]


class BadInit:
    def __init__(self, folder: str) -> None:
        with open(Path(folder) / f"{time.time_ns()}", "w"):
            pass
        raise ValueError("no such model")

    def run(self, values: list[int]) -> list[int]:
        return values


class DiesInInit(BadInit):
    def __init__(self, folder: str) -> None:
        try:
            super().__init__(folder)
        except ValueError:
            os.kill(os.getpid(), signal.SIGKILL)


class Blobs:
    """A document of n pages of a megabyte each."""

    def run(self, docs: list[int]) -> list[list[Any]]:
        return [[np.full(1_000_000, page, np.uint8) for page in range(n)] for n in docs]


class Shrink:
    def run(self, pages: list[Any]) -> list[int]:
        return [int(page[0]) + page.nbytes for page in pages]


class Brighten:
    def run(self, pages: list[Any]) -> list[Any]:
        return [page + np.uint8(1) for page in pages]


class FailFirst:
    """Page 0 of a document is a GroupFailure."""

    def __init__(self, seconds: float = 0.02) -> None:
        self.seconds = seconds

    def run(self, pages: list[int]) -> list[Any]:
        time.sleep(self.seconds)
        return [GroupFailure("first page is broken") if page == 0 else page for page in pages]


class Multi:
    """Several operations of one module."""

    def __init__(self) -> None:
        self.pid = os.getpid()

    def run(self, values: list[Any], *, op: str) -> list[Any]:
        return [(self.pid, value + 1) if op == "first" else (self.pid, value) for value in values]


class Join:
    def run(self, left: list[Any], right: list[Any]) -> list[Any]:
        return list(zip(left, right, strict=True))


class Documents(Pipeline):
    """Document, pages, total: with any Function in the middle."""

    def __init__(self, middle: RayModule, *, total: bool = True) -> None:
        self.pages = RayModule(Pages).ray_options(batch_size=2, **CPU)
        self.middle = middle
        self.total = RayModule(Total).ray_options(batch_size=4, **CPU) if total else None

    def forward(self, docs: Any) -> Any:
        group = F.reduce(self.middle(F.expand(self.pages(docs))))
        return self.total(group) if self.total else group


class Flat(Pipeline):
    """One Function over the source."""

    def __init__(self, module: RayModule) -> None:
        self.module = module

    def forward(self, values: Any) -> Any:
        return self.module(values)
