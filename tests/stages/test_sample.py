"""The sample corpus that a first `make ingest` makes and reads."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

from rayorch_flows.program.outcomes import RecordFailure
from rayorch_flows.stages.ocr import TesseractOcr
from rayorch_flows.stages.pdf import OpenPdf, Render, TextLayer
from rayorch_flows.stages.samples.pdf_corpus import TRUTH, make_sample
from tests.stages.helpers import present, similarity


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_sample(tmp_path_factory.mktemp("sample"))


def test_it_is_the_same_every_time(sample: Path, tmp_path: Path) -> None:
    again = make_sample(tmp_path / "again")
    assert {p.name: p.read_bytes() for p in again.iterdir()} == {p.name: p.read_bytes() for p in sample.iterdir()}


def test_it_is_what_it_says(sample: Path) -> None:
    uris = sorted(str(path) for path in sample.glob("*.pdf"))
    pages, _ = OpenPdf().run(uris)
    lost = {Path(u).name: p.kind.value for u, p in zip(uris, pages, strict=True) if isinstance(p, RecordFailure)}
    assert lost == {"encrypted.pdf": "encrypted", "truncated.pdf": "corrupt"}
    counts = [len(p) for p in pages if not isinstance(p, RecordFailure)]
    assert len(counts) == 9
    assert sum(counts) == 51
    assert max(counts) == 30
    assert sum(path.stat().st_size for path in sample.iterdir()) < 6_000_000


@pytest.mark.slow
def test_born_digital_text_is_exact_and_scans_read_well(sample: Path) -> None:
    truth: dict[str, list[str]] = json.loads((sample / TRUTH).read_text(encoding="utf-8"))
    layer, render, ocr = TextLayer(), Render(), TesseractOcr()
    scores: list[float] = []
    for name, texts in truth.items():
        refs = present(OpenPdf().run([str(sample / name)])[0][0])
        assert len(refs) == len(texts)
        found, masks = layer.run(refs)
        for ref, text, mask, expected in zip(refs, found, masks, texts, strict=True):
            if mask is True:
                scores.append(similarity(present(ocr.run([present(render.run([ref])[0])])[0]).text, expected))
            else:
                assert present(text).text.split() == expected.split()
    assert len(scores) == 9
    assert statistics.median(scores) > 0.98
    assert min(scores) > 0.9
