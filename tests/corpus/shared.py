"""The shared corpus beside the project: used in place where it is there."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2].parent / "shared" / "corpus"

needs_corpus = pytest.mark.skipif(not (FOLDER / "manifest.csv").is_file(), reason=f"no shared corpus at {FOLDER}")


def manifest() -> dict[str, dict[str, str]]:
    """The manifest's rows by file name."""
    with (FOLDER / "manifest.csv").open(newline="", encoding="utf-8") as file:
        return {row["name"]: row for row in csv.DictReader(file)}


def pdfs() -> list[Path]:
    return sorted(FOLDER.glob("pdf_*/*.pdf"))
