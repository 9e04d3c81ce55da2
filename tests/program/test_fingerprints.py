"""The two fingerprints: what changes them, and what must not."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

HELPERS = """\
import re

LIMIT = 10
TABLE = {"a": 1, "b": [2, 3]}
WORD = re.compile("[a-z]+")


def clean(text):
    return shorten(text.strip())


def shorten(text):
    return text[:LIMIT]


def unrelated(text):
    return text
"""

PROGRAM = """\
import helpers
import rayorch_flows as ro
from helpers import clean
from rayorch_flows import F


class Base:
    def finish(self, rows):
        return [row + 1 for row in rows]


class Render(Base):
    SIZE = 3

    def __init__(self, dpi=100, names=()):
        self.dpi = dpi

    def run(self, docs):
        return [[clean(doc)] * self.SIZE for doc in docs]


class Ocr(Base):
    def run(self, pages, *, stage="text"):
        return self.finish([helpers.TABLE["a"] for page in pages])


class Assemble:
    def run(self, groups):
        return [sum(group) for group in groups]


factor = 2
scale = ro.function(lambda xs: [x * factor for x in xs])


class Program(ro.Pipeline):
    def __init__(self):
        self.render = ro.RayModule(Render).pre_init(200, names={"x", "y", "z"})
        self.ocr = ro.RayModule(Ocr).ray_options(batch_size=4)
        self.assemble = ro.RayModule(Assemble)
        self.scale = scale

    def forward(self, docs):
        pages = F.expand(self.render(docs), name="page")
        texts = self.ocr(pages, stage="text")
        whole = self.assemble(F.reduce(texts))
        return self.scale(whole)
"""

RUN = """
import importlib, json, sys
out = {}
for name, (directory, module) in json.loads(sys.argv[1]).items():
    sys.path.insert(0, directory)
    plan = importlib.import_module(module).Program().compile()
    out[name] = [plan.semantic_fingerprint, plan.physical_fingerprint]
    sys.path.remove(directory)
    for loaded in (module, "helpers"):
        sys.modules.pop(loaded, None)
    importlib.invalidate_caches()
print(json.dumps(out))
"""


def run_all(
    where: Path, programs: dict[str, tuple[str, str]], *, module: str = "program", seed: str = "0"
) -> dict[str, tuple[str, str]]:
    """Compiles programs, each with its helpers, in a process of their own."""
    jobs: dict[str, tuple[str, str]] = {}
    for i, (name, (program, helpers)) in enumerate(programs.items()):
        directory = where / str(i)
        directory.mkdir(parents=True)
        (directory / f"{module}.py").write_text(program)
        (directory / "helpers.py").write_text(helpers)
        jobs[name] = (str(directory), module)
    out = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps(jobs)],
        check=False,
        capture_output=True,
        text=True,
        cwd=where,
        env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(ROOT)},
    )
    assert out.returncode == 0, out.stderr
    return {name: tuple(pair) for name, pair in json.loads(out.stdout).items()}


def fingerprints(
    where: Path, program: str | None = None, helpers: str | None = None, **settings: str
) -> tuple[str, str]:
    return run_all(where, {"it": (program or PROGRAM, helpers or HELPERS)}, **settings)["it"]


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return fingerprints(tmp_path_factory.mktemp("known"))


def test_the_same_in_another_process_with_another_hash_seed_and_directory(known, tmp_path):
    assert fingerprints(tmp_path / "moved" / "deeper", seed="4711") == known


def test_the_same_under_another_file_name(known, tmp_path):
    assert fingerprints(tmp_path, module="renamed") == known


def test_the_two_differ_from_each_other(known):
    assert known[0] != known[1]


NEUTRAL = {
    "reformatted": (
        "return [[clean(doc)] * self.SIZE for doc in docs]",
        "return [\n            [clean( doc )]*self.SIZE\n            for doc in docs ]",
    ),
    "comment": ("    def run(self, docs):", "    # a comment\n    def run(self, docs):"),
    "docstring": ("    def run(self, docs):", '    def run(self, docs):\n        """What it does."""'),
    "annotations": ("def run(self, docs):", "def run(self, docs: list[str]) -> list[list[str]]:"),
    "moved down": ("class Base:", "UNUSED = 1\n\n\nclass Base:"),
    "another class beside it": ("class Assemble:", "class Other:\n    pass\n\n\nclass Assemble:"),
    "renamed local of forward": (
        'texts = self.ocr(pages, stage="text")\n        whole = self.assemble(F.reduce(texts))',
        't = self.ocr(pages, stage="text")\n        whole = self.assemble(F.reduce(t))',
    ),
    "set written in another order": ('{"x", "y", "z"}', '{"z", "y", "x"}'),
}

PHYSICAL = {
    "batch size": ("batch_size=4", "batch_size=5"),
    "replicas": ("batch_size=4", "batch_size=4, replicas=2"),
    "recovery": ("batch_size=4", "batch_size=4, recovery=ro.RecoveryPolicy.isolate_tail()"),
    "resources": ("batch_size=4", 'batch_size=4, resources={"x": 1}'),
    "runtime_env": ("batch_size=4", 'batch_size=4, runtime_env={"env_vars": {"A": "1"}}'),
    "slow start": ("batch_size=4", "batch_size=4, slow_start=False"),
    "deadline": ("batch_size=4", "batch_size=4, deadline_s=3"),
    "byte budget": ("batch_size=4", "batch_size=4, max_ready_bytes=100"),
    "name of an attribute": ("self.ocr", "self.reader"),
    "name of a parameter": (
        "forward(self, docs):\n        pages = F.expand(self.render(docs)",
        "forward(self, files):\n        pages = F.expand(self.render(files)",
    ),
}

SEMANTIC = {
    "code of a Function": ("[sum(group) for group in groups]", "[max(group) for group in groups]"),
    "constant in a method of the base class": ("row + 1", "row + 2"),
    "base class": ("class Ocr(Base):", "class Ocr(Render):"),
    "class attribute": ("SIZE = 3", "SIZE = 4"),
    "default of the constructor": ("dpi=100", "dpi=101"),
    "constructor argument": ("pre_init(200", "pre_init(201"),
    "member of a set": ('{"x", "y", "z"}', '{"x", "y", "w"}'),
    "static argument": ('pages, stage="text"', 'pages, stage="layout"'),
    "global of a lambda": ("factor = 2", "factor = 3"),
    "lambda": ("x * factor", "x + factor"),
    "structure": ("F.reduce(texts)", "F.reduce(F.settle(texts))"),
    "outputs": ("return self.scale(whole)", "return self.scale(whole), whole"),
    "name that the user gave a Domain": ('name="page"', 'name="sheet"'),
    "a dead Call": ("return self.scale(whole)", "self.scale(docs)\n        return self.scale(whole)"),
    "another Function": ("RayModule(Assemble)", "RayModule(Render)"),
}

HELPED = {
    "helper by name": ("text.strip()", "text.lstrip()"),
    "helper of the helper": ("text[:LIMIT]", "text[LIMIT:]"),
    "constant of the helper": ("LIMIT = 10", "LIMIT = 11"),
    "table of tables, looked up through the module": ("[2, 3]", "[2, 4]"),
}


def edited(text: str, old: str, new: str) -> str:
    assert old in text, old
    return text.replace(old, new)


@pytest.fixture(scope="module")
def variants(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    edits = {n: (edited(PROGRAM, *e), HELPERS) for n, e in [*NEUTRAL.items(), *PHYSICAL.items(), *SEMANTIC.items()]}
    edits["name of the program"] = (
        edited(PROGRAM, "class Program(", "class Corpus(") + "\n\nProgram = Corpus\n",
        HELPERS,
    )
    edits |= {n: (PROGRAM, edited(HELPERS, *e)) for n, e in HELPED.items()}
    edits["unrelated helper"] = (PROGRAM, edited(HELPERS, "return text\n", "return 42\n"))
    edits["renamed Function"] = (edited(PROGRAM, "Assemble", "PutTogether"), HELPERS)
    head, _, _ = PROGRAM.partition("        pages = F.expand")
    a, b = 'a = self.ocr(docs, stage="a")', 'b = self.ocr(docs, stage="b")'
    for name, lines in {"a before b": (a, b), "b before a": (b, a)}.items():
        edits[name] = (head + "".join(f"        {line}\n" for line in (*lines, "return a, b")), HELPERS)
    return run_all(tmp_path_factory.mktemp("variants"), edits, seed="1")


@pytest.mark.parametrize("name", [*NEUTRAL, "unrelated helper"])
def test_what_does_not_change_the_code_changes_nothing(name, known, variants):
    assert variants[name] == known


@pytest.mark.parametrize("name", [*PHYSICAL, "name of the program"])
def test_options_and_names_change_only_the_physical_one(name, known, variants):
    semantic, physical = variants[name]
    assert semantic == known[0]
    assert physical != known[1]


@pytest.mark.parametrize("name", [*SEMANTIC, *HELPED])
def test_what_changes_the_records_changes_both(name, known, variants):
    semantic, physical = variants[name]
    assert semantic != known[0]
    assert physical != known[1]


def test_every_semantic_change_has_a_fingerprint_of_its_own(variants):
    assert len({variants[name][0] for name in [*SEMANTIC, *HELPED]}) == len(SEMANTIC) + len(HELPED)


def test_a_renamed_function_with_the_same_code_means_the_same(known, variants):
    assert variants["renamed Function"][0] == known[0]


def test_the_order_of_independent_statements_does_not_matter(variants):
    assert variants["a before b"][0] == variants["b before a"][0]


def test_a_file_edited_after_the_import_is_not_taken_for_the_code_that_runs(tmp_path, monkeypatch):
    file = tmp_path / "edited_later.py"
    source = PROGRAM.replace("import helpers\n", "class helpers:\n    TABLE = {'a': 1}\n")
    file.write_text(source.replace("from helpers import clean\n", "clean = str\n"))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    running = importlib.import_module("edited_later")
    before = running.Program().compile().semantic_fingerprint
    file.write_text(file.read_text().replace("sum(group)", "maximum(group)"))
    still = running.Program().compile().semantic_fingerprint
    del sys.modules["edited_later"]
    importlib.invalidate_caches()
    after = importlib.import_module("edited_later").Program().compile().semantic_fingerprint
    del sys.modules["edited_later"]
    assert still == before
    assert after != before


LAZY = """\
import rayorch_flows as ro


class Late:
    def run(self, docs):
        import os.path
        import numpy as np
        import helpers as h
        from helpers import shorten

        return [h.clean(shorten(os.path.basename(doc))) for doc in docs]


class Program(ro.Pipeline):
    def __init__(self):
        self.late = ro.RayModule(Late)

    def forward(self, docs):
        return self.late(docs)


if __name__ == "__main__":
    plan = Program().compile()
    print(plan.semantic_fingerprint, plan.physical_fingerprint)
"""


def test_what_a_function_imports_when_it_runs_counts(tmp_path):
    variants = {
        "as it was": (LAZY, HELPERS),
        "helper": (LAZY, edited(HELPERS, *HELPED["helper by name"])),
        "helper's helper": (LAZY, edited(HELPERS, *HELPED["helper of the helper"])),
        "unrelated": (LAZY, edited(HELPERS, "return text\n", "return 42\n")),
        "unrelated table": (LAZY, edited(HELPERS, *HELPED["table of tables, looked up through the module"])),
    }
    found = {name: pair[0] for name, pair in run_all(tmp_path, variants).items()}
    assert found["as it was"] == found["unrelated"] == found["unrelated table"]
    assert len({found["as it was"], found["helper"], found["helper's helper"]}) == 3


def test_a_script_and_the_module_of_the_same_text_are_the_same_program(tmp_path):
    as_module = fingerprints(tmp_path, LAZY)
    out = subprocess.run(
        [sys.executable, "program.py"],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path / "0",
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert tuple(out.stdout.split()) == as_module


MODELS = """\
import dataclasses
import enum

import rayorch_flows as ro
from pydantic import BaseModel, field_validator


class Mode(enum.Enum):
    FAST = "fast"
    EXACT = "exact"

    @property
    def steps(self):
        return 3


@dataclasses.dataclass(frozen=True)
class Box:
    width: int = 1
    scale: float = dataclasses.field(default=2.0, kw_only=True)

    def area(self):
        return self.width * self.scale


class Page(BaseModel):
    number: int = 1
    text: str = ""

    @field_validator("text")
    @classmethod
    def tidy(cls, text):
        return text.strip()


DEFAULT = Box(3)


class Make:
    def __init__(self, mode, page):
        self.mode = mode

    def run(self, docs):
        return [Page(text=doc).model_dump() | {"area": DEFAULT.area()} for doc in docs]


class Program(ro.Pipeline):
    def __init__(self):
        self.make = ro.RayModule(Make).pre_init(Mode.FAST, Page(number=4))

    def forward(self, docs):
        return self.make(docs)
"""

MODEL_EDITS = {
    "value of a member": ('EXACT = "exact"', 'EXACT = "slow"'),
    "method of an enumeration": ("return 3", "return 4"),
    "chosen member": ("Mode.FAST, Page", "Mode.EXACT, Page"),
    "default of a dataclass": ("width: int = 1", "width: int = 2"),
    "type in a dataclass": ("width: int = 1", "width: float = 1"),
    "method of a dataclass": ("self.width * self.scale", "self.width + self.scale"),
    "global dataclass": ("DEFAULT = Box(3)", "DEFAULT = Box(4)"),
    "type in a model": ("number: int = 1", "number: float = 1"),
    "default in a model": ('text: str = ""', 'text: str = "-"'),
    "validator": ("text.strip()", "text.lstrip()"),
    "argument": ("number=4", "number=5"),
}


def test_enumerations_dataclasses_and_models_count_by_what_they_say(tmp_path):
    pytest.importorskip("pydantic")
    variants = {"as it was": (MODELS, "")} | {name: (edited(MODELS, *edit), "") for name, edit in MODEL_EDITS.items()}
    one = run_all(tmp_path / "a", variants, seed="3")
    other = run_all(tmp_path / "b", variants, seed="4")
    assert one == other
    assert len({semantic for semantic, _ in one.values()}) == len(variants), one
