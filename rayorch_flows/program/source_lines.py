"""Finds the user's line, so that an error can show it."""

from __future__ import annotations

import inspect
import linecache
import sys
import warnings
from types import CodeType, FrameType
from typing import Any, Final

from rayorch_flows.errors import CompileError
from rayorch_flows.program.plan import SourceLine

_COPIERS: Final = frozenset({"copy", "copyreg", "pickle", "cloudpickle.cloudpickle"})


def _is_ours(frame: FrameType) -> bool:
    """Whether the frame is this room's, or of what copies a value for it or for the user."""
    name = frame.f_globals.get("__name__", "")
    return name == "rayorch_flows" or name.startswith("rayorch_flows.program.") or name in _COPIERS


def caller_line() -> SourceLine | None:
    """The innermost line on the stack that does not belong to this room."""
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None and _is_ours(frame):
        frame = frame.f_back
    if frame is None:
        return None
    text = linecache.getline(frame.f_code.co_filename, frame.f_lineno, frame.f_globals).strip()
    return SourceLine(frame.f_code.co_filename, frame.f_lineno, text)


def definition_line(value: Any) -> SourceLine | None:
    """Where a function or a class was written, if that can be known."""
    code = getattr(inspect.unwrap(value) if callable(value) else value, "__code__", None)
    if isinstance(code, CodeType):
        file, line = code.co_filename, code.co_firstlineno
        return SourceLine(file, line, linecache.getline(file, line).strip())
    try:
        file = inspect.getsourcefile(value)
        line = inspect.getsourcelines(value)[1]
    except (TypeError, OSError):
        return None
    return SourceLine(file, line, linecache.getline(file, line).strip()) if file else None


def compile_error(message: str, next_step: str, where: SourceLine | None = None, *, here: bool = True) -> CompileError:
    """A CompileError at ``where``, or else at the user's line that is running now."""
    place = where or (caller_line() if here else None)
    return CompileError(message, where=str(place) if place else "", next_step=next_step)


def compile_warning(message: str, where: SourceLine | None) -> None:
    """A warning that points at the user's line."""
    if where is None:
        warnings.warn(message, stacklevel=3)
    else:
        warnings.warn_explicit(message, UserWarning, where.file, where.line)
