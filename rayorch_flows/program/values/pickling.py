"""Pickling with Functions that no import finds: from a script, a notebook, a test, or a flow given as a file."""

from __future__ import annotations

import sys
from typing import Any

import cloudpickle  # pyright: ignore[reportMissingTypeStubs]


def dumps(value: Any) -> bytes:
    return cloudpickle.dumps(value)  # pyright: ignore[reportUnknownMemberType]


def loads(payload: bytes) -> Any:
    return cloudpickle.loads(payload)


def send_code_of(value: Any) -> None:
    """Let the code of a function or class travel in the pickle if its module was loaded from a file that an import
    by name would not find, as with ``flows/mine.py:FLOW``."""
    kind = value if isinstance(value, type) or hasattr(value, "__code__") else type(value)
    name = getattr(kind, "__module__", None)
    module = sys.modules.get(name or "")
    if module is None or name in ("__main__", "builtins"):
        return  # cloudpickle sends these as they are
    if not _import_finds(name or "", getattr(module, "__file__", None)):
        cloudpickle.register_pickle_by_value(module)  # pyright: ignore[reportUnknownMemberType]


def _import_finds(name: str, file: str | None) -> bool:
    """Whether a fresh process would get this file by this name; nothing is imported to find out."""
    path: Any = None
    spec: Any = None
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        prefix = ".".join(parts[:end])
        finders = (getattr(finder, "find_spec", None) for finder in sys.meta_path)
        found = (find(prefix, path, None) for find in finders if find is not None)
        spec = next((s for s in found if s is not None), None)
        if spec is None:
            return False
        path = spec.submodule_search_locations
    return file is None or spec.origin in (None, "built-in", "frozen", file)
