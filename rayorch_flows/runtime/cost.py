"""What a dispatch batch of one Call costs, from the durations seen so far, and what follows for its way."""

from __future__ import annotations

from math import inf
from typing import Final

RPC_S: Final = 0.001
"""What the way to an actor and back costs a batch beside its execution; measured, to the millisecond."""
MOST_PER_CALL: Final = 8
"""Dispatch batches that one actor call may carry: each has then an eighth of what the way costs."""
_FORGET: Final = 0.98
_SPREAD: Final = 0.05


def batches_per_call(batch_s: float) -> int:
    """How many dispatch batches of ``batch_s`` seconds an actor call carries: as long as the way itself, at most."""
    return max(1, min(MOST_PER_CALL, int(RPC_S / batch_s))) if batch_s else MOST_PER_CALL


class BatchCost:
    """Least squares of seconds over rows, older batches counting less."""

    __slots__ = ("_n", "_s", "_ss", "_st", "_t")

    def __init__(self) -> None:
        self._n = self._s = self._t = self._ss = self._st = 0.0

    def seen(self, rows: int, seconds: float) -> None:
        self._n = self._n * _FORGET + 1.0
        self._s = self._s * _FORGET + rows
        self._t = self._t * _FORGET + seconds
        self._ss = self._ss * _FORGET + rows * rows
        self._st = self._st * _FORGET + rows * seconds

    def batch_s(self) -> float:
        """What a batch takes on average; infinite before the first one."""
        return self._t / self._n if self._n else inf

    def overhead_rows(self) -> float:
        """The fixed cost in rows; infinite while sizes have varied too little to tell it from the cost of a row."""
        if not self._n:
            return inf
        mean_rows, mean_s = self._s / self._n, self._t / self._n
        variance = self._ss / self._n - mean_rows * mean_rows
        if variance <= (_SPREAD * mean_rows) ** 2:
            return inf
        per_row = (self._st / self._n - mean_rows * mean_s) / variance
        if per_row <= 0.0:
            return inf
        return max(0.0, mean_s - per_row * mean_rows + RPC_S) / per_row
