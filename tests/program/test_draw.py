"""Drawings: Domains as nested frames, in text and in Mermaid."""

from __future__ import annotations

import re

import pytest

from rayorch_flows import F
from tests.program.functions import program


def nested(self, docs):
    pages, layouts = F.expand_aligned(*self.two(docs), name="page")
    tables = F.expand(self.a(F.filter(pages, self.b(layouts))), name="table")
    read = self.c(tables, F.broadcast(pages, like=tables), stage="table")
    gathered = F.reduce(F.settle(read))
    return self.c(pages, F.optional(gathered), stage="page"), docs


def test_frames_hold_what_is_in_their_domain():
    text = program(nested).draw().text
    lines = text.splitlines()
    depth = {}
    for line in lines:
        content = line.strip("│ ┌┐└┘─")
        if content:
            depth[content.partition(" <-")[0].partition(":")[0]] = line.count("│") // 2 + line.count("┌")
    assert depth["docs"] == depth["two"] == depth["output 1"] == 1
    assert depth["filter 1"] == depth["reduce 1"] == depth["c#2(stage='page')"] == 2
    assert depth["settle 1"] == depth["broadcast 1"] == depth["c(stage='table')"] == 3


def test_all_lines_of_a_drawing_are_equally_wide():
    lines = program(nested).draw("text").splitlines()
    assert len({len(line) for line in lines}) == 1


def test_arrows_name_outputs_masks_and_optionals():
    text = program(nested).draw("text")
    assert "filter 1 <- page (list 0), b (mask)" in text
    assert "c#2(stage='page') <- page (list 0), reduce 1 (optional)" in text
    assert "output 0 <- c#2" in text


def test_a_reduce_by_other_members_shows_both():
    def forward(self, x):
        p = F.expand(self.a(x))
        return F.reduce(p, members=self.b(p))

    text = program(forward).draw("text")
    assert "reduce 1 <- a[], b (members)" in text
    assert "│ ┌─ a[] ─" in text


def test_mermaid_opens_and_closes_a_subgraph_a_domain():
    mermaid = program(nested).draw().mermaid
    assert mermaid.startswith("flowchart TB\n")
    assert re.findall(r'subgraph (\w+)\["([^"]+)"\]', mermaid) == [("d0", "source"), ("d1", "page"), ("d2", "table")]
    assert len(re.findall(r"^\s+end$", mermaid, re.M)) == 3
    nodes = set(re.findall(r"^\s+(\w+)[\[({]", mermaid, re.M)) - {"subgraph"}
    arrows = re.findall(r"(\w+) --> ?(?:\|[^|]*\| )?(\w+)|(\w+) -->\|[^|]*\| (\w+)", mermaid)
    assert arrows
    for arrow in arrows:
        assert {end for end in arrow if end} <= nodes


def test_mermaid_labels_cannot_break_out():
    def forward(self, x):
        return F.reduce(self.a(F.expand(self.b(x), name='pa"ge] {end}'), note='"] --> x'))

    mermaid = program(forward).draw("mermaid")
    for label in re.findall(r'\["(.*?)"\]', mermaid):
        assert not set(label) & set('"{}<>|\n')
    assert len(re.findall(r"^\s+subgraph", mermaid, re.M)) == 2


def test_the_format_is_what_the_string_holds():
    pipeline = program(nested)
    drawing = pipeline.draw()
    assert str(drawing) == drawing.text == pipeline.draw("text")
    assert pipeline.draw("mermaid") == drawing.mermaid != drawing.text
    with pytest.raises(ValueError, match="format must be"):
        pipeline.draw("svg")  # type: ignore[arg-type]


def test_a_drawing_is_the_same_twice():
    assert program(nested).draw() == program(nested).draw()
