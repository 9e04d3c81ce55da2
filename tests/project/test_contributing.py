"""The files that CONTRIBUTING and the page on one source item name are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILE = re.compile(r"`((?:rayorch_flows|flows|blocks|tests|docs|benchmarks)/[\w./-]+\.\w+)`")
ROW = re.compile(r"^\| (?!I want)(.+?) \| (.+?) \| (.+?) \|$", re.MULTILINE)


def table() -> list[tuple[str, str, str]]:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    return ROW.findall(text.split("## I want to ...")[1].split("\n## ")[0].split("|---|---|---|")[1])


def test_there_is_a_place_to_start_for_what_people_want_to_change() -> None:
    assert len(table()) >= 12
    assert all(FILE.search(start) for _, start, _ in table())


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/one-source-item.md"])
def test_the_files_named_exist(page: str) -> None:
    named = FILE.findall((ROOT / page).read_text())
    assert len(named) >= 12
    assert not [name for name in named if not (ROOT / name).is_file()]
