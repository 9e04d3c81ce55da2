"""What a flow file offers to the command: a name, a Pipeline, the columns of its records, the files it takes."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rayorch_flows.errors import UsageError
from rayorch_flows.records.arrow import ArrowSchema

if TYPE_CHECKING:
    from rayorch_flows import Pipeline

ENTRY_POINT_GROUP: Final = "rayorch_flows.flows"
_NAME: Final = re.compile(r"[a-z][a-z0-9_-]*")


@dataclass(frozen=True, slots=True)
class FlowDefinition:
    """One kind of ingest.

    ``pipeline`` makes the Pipeline; keyword arguments are the flow's own options. The Pipeline has one source column,
    URI strings, and one output, a dict with the fields of ``record``. ``patterns`` are the file name patterns that
    count as sources when a folder is given.
    """

    name: str
    pipeline: Callable[..., Pipeline]
    record: ArrowSchema
    patterns: tuple[str, ...]

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise UsageError(
                f"a flow is named by small letters, digits, '-' and '_', not {self.name!r}",
                next_step="rename the FlowDefinition",
            )
        if not self.patterns:
            raise UsageError(
                f"flow {self.name!r} names no file patterns",
                next_step='give it patterns=("*.pdf",), or ("*",) for every file',
            )


def flow_names() -> list[str]:
    """The flows that installed packages offer."""
    return sorted(entry.name for entry in entry_points(group=ENTRY_POINT_GROUP))


def load_flow(reference: str) -> FlowDefinition:
    """Find a flow by the name of an installed one, or as ``path.py:attribute``."""
    path, colon, attribute = reference.rpartition(":")
    if colon and path.endswith(".py"):
        return _checked(_attribute_of_file(Path(path), attribute), reference)
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        if entry.name == reference:
            return _checked(entry.load(), reference)
    raise UsageError(
        f"there is no flow named {reference!r}",
        next_step=f"use one of {', '.join(flow_names()) or '(none installed)'}, or path.py:NAME",
    )


def _checked(found: Any, reference: str) -> FlowDefinition:
    if not isinstance(found, FlowDefinition):
        raise UsageError(
            f"{reference!r} is {type(found).__name__}, not a FlowDefinition",
            next_step="point at a module-level FlowDefinition(name, pipeline, record, patterns)",
        )
    return found


def _attribute_of_file(path: Path, attribute: str) -> Any:
    file = path.expanduser().resolve()
    if not file.is_file():
        raise UsageError(f"there is no flow file {path}", next_step="check the path before the colon")
    name = f"rayorch_flows_user_{file.stem}"
    module = sys.modules.get(name)
    if module is None or getattr(module, "__file__", None) != str(file):
        spec = importlib.util.spec_from_file_location(name, file)
        if spec is None or spec.loader is None:
            raise UsageError(f"{path} cannot be imported as Python")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    try:
        return getattr(module, attribute)
    except AttributeError:
        raise UsageError(f"{path} has no {attribute!r}", next_step="check the name after the colon") from None
