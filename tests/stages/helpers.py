"""What the tests of the stages share."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TypeVar

from rayorch_flows.program.outcomes import GroupFailure, RecordFailure
from rayorch_flows.stages.pdf import OpenPdf, PageRef

T = TypeVar("T")


def write(folder: Path, data: bytes, name: str = "a.pdf") -> str:
    path = folder / name
    path.write_bytes(data)
    return str(path)


def pages_of(uri: str) -> list[PageRef]:
    """The page references of a file that opens."""
    return present(OpenPdf().run([uri])[0][0])


def present(value: T | RecordFailure | GroupFailure) -> T:
    assert not isinstance(value, (RecordFailure, GroupFailure)), value
    return value


def failure(value: object) -> RecordFailure | GroupFailure:
    assert isinstance(value, (RecordFailure, GroupFailure)), value
    return value


def similarity(found: str, truth: str) -> float:
    """Character similarity, white space and line-break hyphens aside."""
    a, b = (" ".join(text.replace("\ufffe", "-").split()) for text in (found, truth))
    return difflib.SequenceMatcher(None, a, b, autojunk=False).ratio()
