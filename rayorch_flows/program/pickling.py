"""Pickling with Functions that no import finds: from a script, a notebook, a test, or a flow given as a file."""

from __future__ import annotations

from typing import Any

import cloudpickle  # pyright: ignore[reportMissingTypeStubs]


def dumps(value: Any) -> bytes:
    return cloudpickle.dumps(value)  # pyright: ignore[reportUnknownMemberType]


def loads(payload: bytes) -> Any:
    return cloudpickle.loads(payload)
