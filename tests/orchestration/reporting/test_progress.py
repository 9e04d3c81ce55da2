from __future__ import annotations

import pytest

from rayorch_flows.orchestration.reporting.progress import Board, Part, describe, duration, eta_s, percent, plural


def test_words() -> None:
    part = Part(sources=32, done=8, failed=1, children=40)
    assert describe(part, 10.0, "pages") == "8 of 32 sources, 40 pages, 4.0 pages/s, about 30 s left, 1 failed"


def test_no_pace_no_estimate() -> None:
    assert eta_s(Part(10), 5.0) is None
    assert eta_s(Part(10, done=10), 5.0) is None
    assert eta_s(Part(10, done=5), 5.0) == 5.0


def test_percent_stays_within_bounds() -> None:
    assert percent(Part(0)) == 100.0
    assert percent(Part(3, done=4)) == 100.0


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59.7, "1 min 00 s"), (61, "1 min 01 s"), (3720, "1 h 02 min")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("noun", "many"),
    [("page", "pages"), ("render[]", "renders"), ("entry", "entries"), ("lens", "lens"), ("", "children")],
)
def test_plurals(noun: str, many: str) -> None:
    assert plural(noun) == many


def test_the_board_adds_up_its_parts() -> None:
    board = Board(tell=lambda line: None)
    board.begin("pages", 10, 2)
    assert board.began is None
    board.update("a", Part(5, done=2, children=7))
    board.update("b", Part(5, done=1, failed=1))
    board.update("a", Part(5, done=3, children=9))
    assert board.total == Part(10, done=4, failed=1, children=9)
    assert board.began is not None
