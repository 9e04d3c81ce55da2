"""What a hand-written pool has in place of a typed failure: a value that says so."""

from __future__ import annotations


class GroupFailure:
    def __init__(self, cause: str) -> None:
        self.cause = cause
