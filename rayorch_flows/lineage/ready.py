"""The ready queue of one Call in one microbatch: first in, first out, kept as runs of siblings.

Grains that become ready in one step and share a parent form a run, with one sequence number. Runs leave in the order
of their numbers, so the queue is a FIFO, and a range of a thousand siblings costs as much as one Grain.

Slow start (ours): each parent has a window of dispatched but uncommitted Grains that grows by one with every commit.
A parent whose window is full is set aside, and the Grains behind it go first.

Turns (ours, with slow start): a parent of thousands would keep the small ones behind it waiting until its own last
Grain. Once the first parent is a whole turn of Grains ahead of the others, they go first until they have had as many.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import NamedTuple

ROOT_PARENT = -1
"""The parent of every root Entity's Grain: it has no window."""


class Run(NamedTuple):
    sequence: int
    grains: Sequence[int]


class ReadyQueue:
    """Ready Grains of one Call and microbatch, by parent. ``window``: first window w0, 0 without slow start; ``turn``:
    Grains by which the first parent may be ahead of those behind it.

    ``size`` Grains are ready; ``open`` of them could leave now without leaving a window.
    """

    __slots__ = (
        "_ahead",
        "_first",
        "_first_waits",
        "_flying",
        "_held",
        "_open",
        "_order",
        "_queued",
        "_runs",
        "_turn",
        "_window",
        "_windows",
        "open",
        "parent_bound",
        "size",
    )

    def __init__(self, *, window: int, turn: int, parent_bound: bool) -> None:
        self.parent_bound = parent_bound
        self.size = 0
        self.open = 0
        self._window = window
        self._queued: dict[int, int] = {}
        self._open: dict[int, int] = {}
        self._runs: dict[int, deque[Run]] = {}
        self._order: list[tuple[int, int]] = []
        self._held: dict[int, None] = {}
        self._flying: dict[int, int] = {}
        self._windows: dict[int, int] = {}
        self._turn = turn
        self._first = ROOT_PARENT
        self._ahead = 0  # Grains that the first parent has had more than the others since it came first
        self._first_waits = False

    def push(self, parent: int, sequence: int, grains: Sequence[int]) -> None:
        """Append a run of siblings; ``sequence`` must not decrease from push to push."""
        self.size += len(grains)
        self._queued[parent] = self._queued.get(parent, 0) + len(grains)
        self._count_open(parent)
        runs = self._runs.get(parent)
        if runs is not None:
            runs.append(Run(sequence, grains))
            return
        self._runs[parent] = deque((Run(sequence, grains),))
        heappush(self._order, (sequence, parent))

    def oldest(self) -> int | None:
        """Sequence number of the oldest ready Grain, held ones included."""
        numbers = [self._runs[parent][0].sequence for parent in self._held]
        self._drop_stale()
        if self._order:
            numbers.append(self._order[0][0])
        return min(numbers, default=None)

    def take(self, limit: int, *, ignore_windows: bool) -> list[int]:
        """Remove up to ``limit`` Grains in FIFO order; with ``parent_bound`` all of them siblings.

        ``ignore_windows`` serves the parents set aside once the others give nothing more.
        """
        taken: list[int] = []
        passed = heappop(self._order) if self._has_had_its_turn() else None
        while len(taken) < limit:
            self._drop_stale()
            if not self._order and passed:
                heappush(self._order, passed)
                passed = None
            if not self._order:
                break
            parent = self._order[0][1]
            room = self._room(parent, limit - len(taken))
            if room <= 0:
                heappop(self._order)
                self._held[parent] = None
                continue
            self._pull(parent, room, taken)
            if self.parent_bound:
                while parent in self._runs and (room := self._room(parent, limit - len(taken))) > 0:
                    self._pull(parent, room, taken)
                break
        if passed:
            heappush(self._order, passed)
        if ignore_windows and len(taken) < limit and not (self.parent_bound and taken):
            self._take_held(limit, taken)
        self.size -= len(taken)
        return taken

    def dispatched(self, parent: int, count: int) -> None:
        """Count Grains of ``parent`` that left, by ``take`` or in a recovery group."""
        if self._window and parent != ROOT_PARENT:
            self._flying[parent] = self._flying.get(parent, 0) + count
        self._count_open(parent)

    def returned(self, parent: int, count: int, committed: int) -> None:
        """Count Grains of ``parent`` that came back, ``committed`` of them with an accepted Report."""
        if not self._window or parent == ROOT_PARENT:
            return
        self._flying[parent] = self._flying.get(parent, 0) - count
        self._windows[parent] = self._windows.get(parent, self._window) + committed
        self._count_open(parent)
        if parent in self._held:
            del self._held[parent]
            heappush(self._order, (self._runs[parent][0].sequence, parent))

    def forget(self, parent: int) -> None:
        """A barrier: drop every queued Grain of ``parent``."""
        self._runs.pop(parent, None)
        self.size -= self._queued.pop(parent, 0)
        self._count_open(parent)
        self._held.pop(parent, None)

    def queued(self) -> list[int]:
        """Every queued Grain, in no particular order (for checks)."""
        return [grain for runs in self._runs.values() for run in runs for grain in run.grains]

    def _count_open(self, parent: int) -> None:
        queued = self._queued.get(parent, 0)
        now = max(0, self._room(parent, queued))
        self.open += now - self._open.pop(parent, 0)
        if now:
            self._open[parent] = now

    def _room(self, parent: int, limit: int) -> int:
        if not self._window or parent == ROOT_PARENT:
            return limit
        return min(limit, self._windows.get(parent, self._window) - self._flying.get(parent, 0))

    def _has_had_its_turn(self) -> bool:
        """Whether the first parent is to let those behind it go first."""
        self._drop_stale()
        if not self._window or len(self._order) < 2:
            return False
        first = self._order[0][1]
        if first != self._first:
            self._first, self._ahead, self._first_waits = first, 0, False
        elif not 0 < self._ahead < self._turn:
            self._first_waits = self._ahead > 0
        return self._first_waits

    def _drop_stale(self) -> None:
        """Heap entries of parents that a barrier removed, or whose head moved on, go when they come up."""
        while self._order:
            sequence, parent = self._order[0]
            runs = self._runs.get(parent)
            if runs is not None and runs[0].sequence == sequence and parent not in self._held:
                return
            heappop(self._order)

    def _pull(self, parent: int, count: int, taken: list[int]) -> None:
        """Move up to ``count`` Grains of the head run of ``parent`` to ``taken``."""
        runs = self._runs[parent]
        sequence, grains = runs[0]
        part = grains[:count]
        taken.extend(part)
        left = self._queued[parent] = self._queued[parent] - len(part)
        if not left:
            del self._queued[parent]
        self.dispatched(parent, len(part))
        ahead = self._ahead + (len(part) if parent == self._first else -len(part))
        self._ahead = max(0, min(self._turn, ahead))
        if len(part) < len(grains):
            runs[0] = Run(sequence, grains[len(part) :])
            return
        runs.popleft()
        if not runs:
            del self._runs[parent]
        elif parent not in self._held:
            heappush(self._order, (runs[0].sequence, parent))

    def _take_held(self, limit: int, taken: list[int]) -> None:
        """Serve the parents set aside, oldest first, windows ignored."""
        for parent in sorted(self._held, key=lambda p: self._runs[p][0].sequence):
            while parent in self._runs and len(taken) < limit:
                self._pull(parent, limit - len(taken), taken)
            if parent not in self._runs:
                del self._held[parent]
            if len(taken) >= limit or self.parent_bound:
                return
