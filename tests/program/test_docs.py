"""docs/programs.md: its programs run, and its drawings and its error are what comes out.

``python -m tests.program.test_docs`` writes them anew.
"""

from __future__ import annotations

import linecache
import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "programs.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)


def blocks(text: str) -> list[tuple[str, str, str]]:
    """Each block with its language, its text, and what belongs there by the Python blocks before it."""
    names: dict[str, Any] = {"__name__": "programs"}
    found: list[tuple[str, str, str]] = []
    for number, match in enumerate(BLOCK.finditer(text)):
        language, body = match.groups()
        wanted = body
        if language == "python":
            file = f"docs/programs.md, block {number}"
            linecache.cache[file] = (len(body), None, body.splitlines(keepends=True), file)
            exec(compile(body, file, "exec"), names)
        elif language in ("text", "mermaid"):
            wanted = getattr(names["drawing"], language)
        elif language == "error":
            wanted = f"{names['complaint']}\n"
        found.append((language, body, wanted))
    return found


@pytest.fixture(scope="module")
def page() -> list[tuple[str, str, str]]:
    pytest.importorskip("tesserocr", reason="the PDF program needs it")
    return blocks(PAGE.read_text())


@pytest.mark.parametrize(("language", "count"), [("text", 4), ("mermaid", 3), ("error", 1)])
def test_what_the_page_shows_is_what_comes_out(page, language, count):
    shown = [(body, wanted) for kind, body, wanted in page if kind == language]
    assert len(shown) == count
    for body, wanted in shown:
        assert body == wanted


def test_the_page_names_every_primitive_and_every_option():
    import dataclasses

    from rayorch_flows import F
    from rayorch_flows.program.plan import Options

    text = PAGE.read_text()
    for name in F.__all__:
        assert f"`F.{name}(" in text
    for field in dataclasses.fields(Options):
        if field.name != "actor":
            assert f"| `{field.name}` |" in text


@pytest.mark.ray
def test_the_programs_of_the_page_run(ray_cluster):
    names: dict[str, Any] = {"__name__": "programs"}
    for language, body in BLOCK.findall(PAGE.read_text()):
        if language == "python" and "rayorch_flows.flows.pdf" not in body:
            exec(body, names)
    assert names["Lengths"]().run(["a bc", "def"]).outputs == [5, 4]
    documents = [{"pages": [{"number": 1, "text": "t", "tables": ["A", "B"]}]}, {"pages": []}]
    assert names["DocumentProgram"]().run(documents).outputs == [
        {"pages": [{"text": "text: t of 1", "tables": ["table: A of 1", "table: B of 1"]}]},
        {"pages": []},
    ]
    frames = [{"cut": True, "caption": "x"}, {"cut": False, "caption": "y"}]
    videos = [{"frames": frames, "sounds": [{"words": "hi"}]}, {"frames": [], "sounds": []}]
    assert names["VideoProgram"]().run(videos).outputs == [
        {"captions": ["x"], "words": ["hi"]},
        {"captions": [], "words": []},
    ]


def rewrite() -> None:
    text = PAGE.read_text()
    wanted = iter(blocks(text))

    def replace(match: re.Match[str]) -> str:
        language, _, body = next(wanted)
        return f"```{language}\n{body}```"

    PAGE.write_text(BLOCK.sub(replace, text))


if __name__ == "__main__":
    rewrite()
