"""The command as a person can type it: under ``make`` it lies in ``.venv/bin``, which is not on the PATH."""

from __future__ import annotations

import shlex
import shutil
import sys
from functools import cache
from pathlib import Path
from typing import Final

NAME: Final = "rayorch-flows"


def typed(arguments: str) -> str:
    """``rayorch-flows ARGUMENTS``, with the path that leads to it from here."""
    return f"{_program()} {arguments}"


@cache
def _program() -> str:
    """Its bare name if the shell finds this one, or if there is none; else its path, relative if it lies below here."""
    started = Path(sys.argv[0])
    script = (started if started.name == NAME else Path(sys.executable).with_name(NAME)).absolute()
    found = shutil.which(NAME)
    if not script.exists() or (found is not None and Path(found).samefile(script)):
        return NAME
    below = script.is_relative_to(Path.cwd())
    return shlex.quote(str(script.relative_to(Path.cwd()) if below else script))
