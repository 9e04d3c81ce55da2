"""What a dispatch batch of one Call costs whatever its size, told in rows, from the durations seen so far."""

from __future__ import annotations

from math import inf
from typing import Final

RPC_S: Final = 0.001
"""What the way to an actor and back costs a batch beside its execution; measured, to the millisecond."""
_FORGET: Final = 0.98
_SPREAD: Final = 0.05


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
