"""Hints name the command in the way in which it can be typed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rayorch_flows import command


def installed(folder: Path) -> Path:
    folder.mkdir(parents=True)
    script = folder / command.NAME
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    return script


@pytest.fixture(autouse=True)
def _nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder of its own, and no command on the PATH or beside the interpreter."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/no/such/folder")
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    monkeypatch.setattr(command, "_program", command._program.__wrapped__)


def test_it_lies_below(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "argv", [str(installed(tmp_path / ".venv" / "bin")), "ingest"])
    assert command.typed("ui") == ".venv/bin/rayorch-flows ui"


def test_it_lies_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = installed(tmp_path / "a b" / "bin")
    monkeypatch.setattr(sys, "argv", [str(script)])
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert command.typed("ui") == f"'{script}' ui"


def test_it_is_on_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = installed(tmp_path / "bin")
    monkeypatch.setattr(sys, "argv", [str(script)])
    monkeypatch.setenv("PATH", str(script.parent))
    assert command.typed("ui") == "rayorch-flows ui"


def test_another_one_is_on_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(installed(tmp_path / "other").parent))
    monkeypatch.setattr(sys, "argv", [str(installed(tmp_path / "bin"))])
    assert command.typed("ui") == "bin/rayorch-flows ui"


def test_a_module_or_a_worker_was_started_instead(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(installed(tmp_path / "bin").with_name("python")))
    monkeypatch.setattr(sys, "argv", ["/somewhere/cli.py"])
    assert command.typed("ui") == "bin/rayorch-flows ui"


def test_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["-c"])
    assert command.typed("ui") == "rayorch-flows ui"
