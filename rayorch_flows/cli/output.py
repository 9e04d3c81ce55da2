"""What a command prints: text for people, or JSON on request; what went wrong, on the error stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from cyclopts import Parameter
from pydantic import BaseModel
from rich.console import Console

AsJson = Annotated[bool, Parameter(name="--json", negative="")]
"""The ``--json`` of every command that has one."""


def show(text: str, models: Sequence[BaseModel], *, as_json: bool) -> None:
    """Print the text, or the same facts as one JSON object a line."""
    if not as_json:
        print(text, flush=True)
        return
    for model in models:
        print(model.model_dump_json(), flush=True)


def say(message: object, status: int) -> int:
    """Say what went wrong; the exit status is handed through."""
    Console(stderr=True, highlight=False).print(f"rayorch-flows: {message}", markup=False, soft_wrap=True)
    return status
