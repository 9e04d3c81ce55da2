"""Somebody else's exception in a line or two."""

from __future__ import annotations

import re
from typing import Final

from rayorch_flows.errors import RayorchFlowsError

LONGEST: Final = 600
_INSTALL: Final = (
    "install it where the workers run, or send it along: runtime_env of a ray-cluster block (docs/blocks.md)"
)
_ESCAPE: Final = re.compile(r"\x1b\[[0-9;]*m")


def gist(error: object) -> str:
    """What went wrong, without tracebacks and terminal colours; our own errors keep all their lines."""
    if isinstance(error, RayorchFlowsError):
        return str(error)
    cause = getattr(error, "cause", None)
    if isinstance(cause, BaseException) and cause is not error:
        return gist(cause)
    text = _ESCAPE.sub("", str(error)).strip()
    if "Traceback (most recent call last)" in text or "\n  File " in text:
        text = next((line for line in reversed(text.splitlines()) if line and not line[0].isspace()), text)
    name = type(error).__name__
    text = text if text.startswith(name) or not isinstance(error, BaseException) else f"{name}: {text}"
    text = text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
    return f"{text}\n  next: {_INSTALL}" if text.startswith("ModuleNotFoundError") else text
