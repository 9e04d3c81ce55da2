"""The best wall time that a scheduler without any cost of its own could reach, found by simulating several.

Microbatches are admitted while fewer than ``active`` of them are unfinished; an idle actor takes the oldest ready
pages. The simulated schedulers differ in how large a batch they take when pages are scarce; the best of them counts.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence

SHARES = (0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 1e9)


def best_wall_s(
    microbatches: Sequence[int], *, active: int, actors: int, batch: int, cost: Callable[[int], float]
) -> float:
    """``microbatches``: pages of each. A share s lets a batch hold s times an equal share of the ready pages."""
    return min(_wall_s(microbatches, active, actors, batch, cost, share) for share in SHARES)


def _wall_s(
    microbatches: Sequence[int],
    active: int,
    actors: int,
    batch: int,
    cost: Callable[[int], float],
    share: float,
) -> float:
    waiting = deque(enumerate(microbatches))
    open_pages: dict[int, int] = {}
    ready: deque[list[int]] = deque()
    running: list[tuple[float, int, list[tuple[int, int]]]] = []
    idle, now, number = actors, 0.0, 0
    while True:
        while waiting and len(open_pages) < active:
            index, pages = waiting.popleft()
            open_pages[index] = pages
            ready.append([index, pages])
        total = sum(pages for _, pages in ready)
        while idle and total:
            room = min(batch, max(1, round(share * total / idle)))
            taken: list[tuple[int, int]] = []
            while room and ready:
                index, pages = ready[0]
                part = min(room, pages)
                taken.append((index, part))
                room -= part
                ready[0][1] -= part
                if not ready[0][1]:
                    ready.popleft()
            size = sum(part for _, part in taken)
            total -= size
            number += 1
            heapq.heappush(running, (now + cost(size), number, taken))
            idle -= 1
        if not running:
            return now
        now, _, done = heapq.heappop(running)
        idle += 1
        for index, part in done:
            open_pages[index] -= part
            if not open_pages[index]:
                del open_pages[index]
