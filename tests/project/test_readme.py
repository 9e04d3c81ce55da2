"""The README is run: its Pipeline, its command and the table that it promises."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rayorch_flows import Executor
from rayorch_flows.stages.samples.pdf_corpus import make_sample

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
INGEST_ENVIRONMENT = {"DO_NOT_TRACK": "1", "PREFECT_SERVER_ANALYTICS_ENABLED": "false", "COLUMNS": "120"}


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def shape(text: str) -> list[str]:
    """Lines with every number as 0 and no alignment: what may differ between two runs is gone."""
    text = re.sub(r"\d+ min \d+ s", "0 s", text)
    return [re.sub(r"\s+", " ", re.sub(r"\d+(\.\d+)?", "0", line)).strip() for line in text.strip().splitlines()]


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="rf-readme-", dir="/tmp") as name:
        make_sample(Path(name) / "sample-corpus")
        yield Path(name)


@pytest.fixture(scope="module")
def ingested(folder: Path) -> str:
    """What the command of the README prints, without the lines that say when something happened."""
    environment = (
        os.environ | INGEST_ENVIRONMENT | {"RAYORCH_FLOWS_HOME": str(folder / "home"), "PYTHONPATH": str(ROOT)}
    )
    command = [sys.executable, "-m", "rayorch_flows.cli", "ingest", "sample-corpus", "--table", "records"]
    command += ["--flow", f"{ROOT}/flows/pdf.py:FLOW"]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=800, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return "\n".join(line for line in done.stdout.splitlines() if not re.match(r"\d\d:\d\d:\d\d ", line))


@pytest.mark.ray
@pytest.mark.slow
def test_the_pipeline_runs_as_it_stands(folder: Path, ray_cluster: str) -> None:
    names: dict[str, Any] = {}
    exec(compile(blocks("python")[0], str(ROOT / "README.md"), "exec"), names)
    uris = [str(folder / "sample-corpus" / name) for name in ("letter.pdf", "scan-memo.pdf", "encrypted.pdf")]
    with Executor(names["Documents"](), address=ray_cluster) as executor:
        letter, memo, encrypted = executor.run(uris).outputs
    assert letter["n_pages"] == 1
    assert letter["n_ocr_pages"] == 0
    assert memo["n_ocr_pages"] == 1
    assert len(memo["markdown"]) > 500
    assert encrypted.outcome == "suppressed"  # by the failure to open it, which is its cause
    assert "password" in encrypted.cause


def test_the_pipeline_is_short() -> None:
    """Ten lines of declarations and the wiring: whoever makes it longer makes the first screen longer."""
    body = blocks("python")[0].split("class Documents(Pipeline):\n")[1].rstrip().splitlines()
    assert len([line for line in body if line.strip()]) <= 14


@pytest.mark.ray
@pytest.mark.prefect
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_command_prints_what_it_says(ingested: str) -> None:
    promised = shape(blocks("text")[0])
    printed = shape(ingested)
    head, causes = printed[0], printed[2]
    assert head == promised[0]
    assert causes == promised[2]
    calls = [line.split()[0] for line in printed if re.fullmatch(r"\w+ 0 0 0 0% 0 s", line)]
    assert calls == [line.split()[0] for line in promised if re.fullmatch(r"\w+ 0 0 0 0% 0 s", line)]
    assert [line.split()[0] for line in printed if line][-3:] == ["table", "failures", "history"]


@pytest.mark.ray
@pytest.mark.prefect
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_table_can_be_read_as_it_says(
    ingested: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ingested
    monkeypatch.chdir(folder)
    exec(compile(blocks("python")[1], str(ROOT / "README.md"), "exec"), {})
    lines = capsys.readouterr().out.strip().splitlines()
    assert len(lines) >= 11
    assert any("encrypted.pdf failed encrypted" in line for line in lines)
    assert any("handbook.pdf present None 30" in line for line in lines)


def test_what_it_points_to_exists() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
    pages.append(ROOT / "benchmarks" / "README.md")
    missing = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text())
        if not (page.parent / target).exists()
    ]
    assert not missing
