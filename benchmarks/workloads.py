"""The inputs, made from fixed seeds, so that every system and every run sees the same ones."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

TRACE_PARENTS = 1_885
TRACE_PAGES = 45_507
TRACE_LARGE = 99
TRACE_LARGE_PAGES = 23_613
LARGEST = 427


@dataclass(frozen=True)
class Documents:
    """Page counts by document, and the documents whose page 0 is poisoned."""

    pages: tuple[int, ...]
    poisoned: frozenset[int] = frozenset()

    @property
    def total(self) -> int:
        return sum(self.pages)

    @property
    def doomed(self) -> int:
        """Pages beside a poisoned one: whatever is spent on them is lost."""
        return sum(self.pages[index] - 1 for index in self.poisoned)


def failure_trace(scale: float) -> Documents:
    """The paper's failure trace, or ``1 / scale`` of it: a few documents hold half of the pages; they are poisoned."""
    large = _counts(int(TRACE_LARGE / scale), int(TRACE_LARGE_PAGES / scale), 192, LARGEST, seed=1)
    rest = int(TRACE_PAGES / scale) - sum(large)
    small = _counts(int((TRACE_PARENTS - TRACE_LARGE) / scale), rest, 1, 23, seed=2)
    marked = [(count, True) for count in large] + [(count, False) for count in small]
    random.Random(3).shuffle(marked)
    pages = tuple(count for count, _ in marked)
    return Documents(pages, frozenset(index for index, (_, bad) in enumerate(marked) if bad))


def log_normal(documents: int, *, seed: int = 5, median: float = 14.0, sigma: float = 1.15) -> Documents:
    """Documents as corpora have them: most are short, a few are very long."""
    draw = random.Random(seed)
    counts = (round(draw.lognormvariate(math.log(median), sigma)) for _ in range(documents))
    return Documents(tuple(min(LARGEST, max(1, count)) for count in counts))


def _counts(number: int, total: int, low: int, high: int, *, seed: int) -> list[int]:
    """``number`` counts within [low, high] that sum to ``total``, skewed towards the low end."""
    if not number * low <= total <= number * high:
        raise ValueError(f"{number} counts within [{low}, {high}] cannot sum to {total}")
    draw = random.Random(seed)
    counts = [low + int((high - low) * draw.random() ** 2) for _ in range(number)]
    counts[0] = high
    counts[-1] = low
    step = 1 if sum(counts) < total else -1
    movable = range(1, number - 1) if number > 4 else range(number)  # the extremes stay, where there are enough
    while sum(counts) != total:
        at = draw.choice(movable)
        if low <= counts[at] + step <= high:
            counts[at] += step
    return counts


def page_value(document: int, ordinal: int) -> int:
    """What the model answers for a page: enough to see a page that is lost, doubled or out of order."""
    return document * 1_000 + ordinal


def page_values(documents: Any, ordinals: Any) -> Any:
    """The same over whole arrays."""
    return documents * 1_000 + ordinals


def expected(documents: Documents) -> list[list[int] | None]:
    """Every document's results in page order; None for one that has to fail."""
    return [
        None if index in documents.poisoned else [page_value(index, ordinal) for ordinal in range(count)]
        for index, count in enumerate(documents.pages)
    ]


def same(outputs: Sequence[object], wanted: Sequence[object]) -> bool:
    return list(outputs) == list(wanted)
