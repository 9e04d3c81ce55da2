"""How far an ingest is: a board that flows of this process write and a display reads, and the words for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from rayorch_flows.orchestration.reporting.summary import IngestSummary, MicrobatchSummary


@dataclass(slots=True)
class Part:
    """One microbatch on the board."""

    sources: int
    done: int = 0
    failed: int = 0
    children: int = 0
    children_failed: int = 0
    finished: bool = False


@dataclass(slots=True)
class Board:
    """The state of one ingest, for whoever displays it. ``tell`` gets the lines of its story, ``summary`` its end."""

    tell: Callable[[str], None]
    child_noun: str = "children"
    sources: int = 0
    unchanged: int = 0
    stage: str = "starting"
    began: float | None = None
    parts: dict[str, Part] = field(default_factory=dict[str, Part])
    summary: IngestSummary | None = None

    def begin(self, child_noun: str, sources: int, unchanged: int) -> None:
        self.child_noun, self.sources, self.unchanged = child_noun, sources, unchanged

    def update(self, microbatch: str, part: Part) -> None:
        if self.began is None and (part.done or part.children):
            self.began = time.monotonic()
        self.parts[microbatch] = part

    @property
    def total(self) -> Part:
        """All microbatches together; ``sources`` is what this run has to do."""
        total = Part(self.sources)
        for part in self.parts.values():
            total.done += part.done
            total.failed += part.failed
            total.children += part.children
            total.children_failed += part.children_failed
        return total


def finished_part(summary: MicrobatchSummary) -> Part:
    """A microbatch that is over, on the board."""
    return Part(
        summary.sources,
        done=summary.sources if summary.committed else 0,
        failed=summary.failed,
        children=summary.children,
        children_failed=summary.children_failed,
        finished=True,
    )


_board: ContextVar[Board | None] = ContextVar("rayorch_flows_board", default=None)


def current_board() -> Board | None:
    return _board.get()


@contextmanager
def showing(board: Board) -> Generator[Board]:
    """Flows started inside write to this board."""
    token = _board.set(board)
    try:
        yield board
    finally:
        _board.reset(token)


def describe(part: Part, elapsed_s: float, child_noun: str = "children") -> str:
    """``12 of 32 sources, 340 pages, 12.3 pages/s, about 20 s left, 1 failed``."""
    words = [f"{part.done} of {part.sources} sources"]
    if part.children:
        words.append(f"{part.children} {child_noun}")
        if elapsed_s > 0:
            words.append(f"{part.children / elapsed_s:.1f} {child_noun}/s")
    remaining = eta_s(part, elapsed_s)
    if remaining is not None:
        words.append(f"about {duration(remaining)} left")
    if part.failed:
        words.append(f"{part.failed} failed")
    if part.children_failed:
        words.append(f"{part.children_failed} {child_noun} failed")
    return ", ".join(words)


def eta_s(part: Part, elapsed_s: float) -> float | None:
    """How long the rest takes at the pace so far; nothing before there is a pace."""
    if not part.done or part.done >= part.sources or elapsed_s <= 0:
        return None
    return elapsed_s * (part.sources - part.done) / part.done


def percent(part: Part) -> float:
    return 100.0 if part.sources == 0 else min(100.0, 100.0 * part.done / part.sources)


def duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def plural(noun: str) -> str:
    """The plural of a Domain's name: page -> pages."""
    base = noun.removesuffix("[]")
    if base in ("", "child"):
        return "children"
    if base.endswith("s"):
        return base
    if base.endswith("y") and base[-2:-1] not in "aeiou":
        return base[:-1] + "ies"
    return base + "s"
