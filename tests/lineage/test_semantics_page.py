"""docs/semantics.md: each promise names tests that exist, and its diagrams are those of the tables."""

from __future__ import annotations

import re
from pathlib import Path

from tests.lineage.diagrams import PAGE, render

TESTS = Path(__file__).resolve().parents[1]


def known_tests() -> set[str]:
    text = "\n".join(path.read_text() for path in TESTS.rglob("test_*.py"))
    return set(re.findall(r"^(?:async )?def (test_\w+)\(", text, re.MULTILINE)) | set(
        re.findall(r"^(Test\w+) = ", text, re.MULTILINE)
    )


def promises() -> list[str]:
    """The bullets of the page, each with its continuation lines."""
    return re.findall(r"^- .*(?:\n  .*)*", PAGE.read_text(), re.MULTILINE)


def test_every_promise_names_tests_that_exist() -> None:
    known = known_tests()
    for promise in promises():
        named = re.findall(r"`((?:test_|Test)\w+)`", promise)
        assert named, f"no test named: {promise}"
        assert set(named) <= known, f"no such test: {set(named) - known}"
    assert len(promises()) > 60


def test_every_rule_by_example_stands_on_the_page() -> None:
    """Rules, scheduling and life cycle: a new test there is a new sentence here."""
    page = PAGE.read_text()
    for name in ("test_rules.py", "test_scheduling.py", "test_life_cycle.py"):
        for test in re.findall(r"^def (test_\w+)\(", (TESTS / "lineage" / name).read_text(), re.MULTILINE):
            assert f"`{test}`" in page, test


def test_the_diagrams_are_made_from_the_tables() -> None:
    """If this fails: python -m tests.lineage.diagrams"""
    assert render(PAGE.read_text()) == PAGE.read_text()
