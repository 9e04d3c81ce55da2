"""Who still needs which block, and how many bytes each Call has made that nobody has released."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from itertools import groupby

from rayorch_flows.lineage.facts import NO_BLOCK, Microbatch
from rayorch_flows.lineage.index import Release
from rayorch_flows.lineage.protocol import Block
from rayorch_flows.program.plan import NO_ID


class Retention:
    """Reference counts of blocks. A block goes when no Item, and no Expansion to come, needs a row of it."""

    __slots__ = ("_bytes", "_producer", "_refs", "live", "released")

    def __init__(self, calls: int) -> None:
        self._refs: dict[int, int] = {}
        self._bytes: dict[int, int] = {}
        self._producer: dict[int, int] = {}
        self.live = [0] * calls
        self.released: list[int] = []

    def register(self, blocks: Iterable[Block], producer: int) -> None:
        """Take charge of new blocks of Call ``producer`` (NO_ID: a source), held until ``let_blocks_go``."""
        for block in blocks:
            self._refs[block.id] = 1
            self._bytes[block.id] = block.nbytes
            self._producer[block.id] = producer
            if producer != NO_ID:
                self.live[producer] += block.nbytes

    def add(self, block: int, count: int = 1) -> None:
        self._refs[block] += count

    def drop(self, block: int, count: int = 1) -> None:
        """Let go of ``count`` references; the last one releases the block."""
        left = self._refs[block] - count
        self._refs[block] = left
        if left == 0:
            self._release(block)

    def let_blocks_go(self, blocks: Iterable[Block]) -> None:
        """All rows of these new blocks are placed: what got no reference (rejected, or nobody reads it) is released."""
        for block in blocks:
            self.drop(block.id)

    def references(self) -> dict[int, int]:
        """Live blocks and their reference counts (for checks)."""
        return dict(self._refs)

    def let_go(self, microbatch: Microbatch, releases: tuple[Release, ...], entities: list[int] | range) -> None:
        """The consumers at ``entities`` need their inputs no more."""
        for release in releases:
            state = microbatch.ports[release.holder]
            left, block = state.left, state.block
            gone: dict[int, int] = {}
            reached = microbatch.descendants(release.down, entities) if release.down else entities
            if isinstance(reached, range) and left[reached.start : reached.stop].count(1) == len(reached):
                part = slice(reached.start, reached.stop)
                for held, rows in groupby(block[part]):
                    gone[held] = gone.get(held, 0) + len(list(rows))
                left[part] = array("H", bytes(2 * len(reached)))
                block[part] = array("q", (NO_BLOCK,)) * len(reached)
                gone.pop(NO_BLOCK, None)
                self._drop_all(gone)
                continue
            last = [entity for entity in reached if left[entity] == 1]
            for held, rows in groupby([block[entity] for entity in last]):
                gone[held] = gone.get(held, 0) + len(list(rows))
            if len(last) < len(reached):
                for entity in reached:
                    if left[entity] > 1:
                        left[entity] -= 1
            for entity in last:
                left[entity] = 0
                block[entity] = NO_BLOCK
            gone.pop(NO_BLOCK, None)
            self._drop_all(gone)

    def let_go_all(self, microbatch: Microbatch, holder: int, entities: list[int] | range) -> None:
        """Whatever still holds these Items, it is over."""
        state = microbatch.ports[holder]
        left, block = state.left, state.block
        gone: dict[int, int] = {}
        for entity in entities:
            left[entity] = 0
            held = block[entity]
            if held != NO_BLOCK:
                block[entity] = NO_BLOCK
                gone[held] = gone.get(held, 0) + 1
        self._drop_all(gone)

    def _drop_all(self, counts: dict[int, int]) -> None:
        for block, count in counts.items():
            self.drop(block, count)

    def _release(self, block: int) -> None:
        del self._refs[block]
        producer = self._producer.pop(block)
        nbytes = self._bytes.pop(block)
        if producer != NO_ID:
            self.live[producer] -= nbytes
        self.released.append(block)
