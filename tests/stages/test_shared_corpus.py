"""The real files: every one opens or fails as it should, and scans read well."""

from __future__ import annotations

import collections
import json
import statistics

import pytest

from rayorch_flows.program.outcomes import GroupFailure, RecordFailure
from rayorch_flows.stages.ocr import TesseractOcr
from rayorch_flows.stages.pdf import OpenPdf, Render, TextLayer
from tests.corpus import shared
from tests.stages.helpers import pages_of, present, similarity

EMPTY = {"qpdf__empty.pdf", "qpdf__filter-on-write.pdf", "qpdf__out_8c1557.pdf"}
"""Their page trees are empty. The manifest repeats pdfium's last error, which is that of another file."""
NO_PDF = {
    "made__html_error_page.pdf",
    "qpdf__bad.pdf",
    "qpdf__bad1.pdf",
    "unstructured__DA-619p_004bb9.pdf",
    "unstructured__warmup.pdf",
}


def expected_kind(row: dict[str, str]) -> str:
    said = row["opens_with_pypdfium2"]
    if row["name"] in EMPTY:
        return "empty"
    if row["name"] in NO_PDF:
        return "unsupported"
    return "encrypted" if "password" in said or "security" in said else "corrupt"


@shared.needs_corpus
def test_every_file_has_its_pages_or_its_cause() -> None:
    manifest = shared.manifest()
    paths = shared.pdfs()
    assert len(paths) == 293
    pages, infos = OpenPdf().run([str(path) for path in paths])
    for path, refs, info in zip(paths, pages, infos, strict=True):
        row = manifest[path.name]
        if row["opens_with_pypdfium2"].startswith("yes"):
            assert len(present(refs)) == int(row["pages"]) == present(info).n_pages, path.name
        else:
            assert isinstance(refs, RecordFailure), path.name
            assert refs.kind == expected_kind(row), path.name


@pytest.mark.slow
@shared.needs_corpus
def test_every_page_has_a_layer_or_goes_on() -> None:
    layer = TextLayer()
    seen: collections.Counter[str] = collections.Counter()
    for path in shared.pdfs():
        refs = OpenPdf().run([str(path)])[0][0]
        if isinstance(refs, RecordFailure):
            continue
        texts, masks = layer.run(refs)
        for text, mask in zip(texts, masks, strict=True):
            if isinstance(text, (RecordFailure, GroupFailure)):
                assert path.name == "qpdf__deep-pages.pdf"
                seen["failed"] += 1
            else:
                seen["scan" if mask is True else text.source] += 1
                text.text.encode("utf-8")
    assert seen["failed"] == 1
    assert sum(seen.values()) == 1_941
    assert 1_750 < seen["layer"] < 1_820
    assert seen["scan"] < 150


@pytest.mark.slow
@shared.needs_corpus
def test_the_made_scans_read_as_their_originals() -> None:
    truth: dict[str, list[str]] = json.loads((shared.FOLDER / "scan_truth.json").read_text(encoding="utf-8"))
    render, ocr = Render(), TesseractOcr()
    scores: list[float] = []
    for name, texts in truth.items():
        for ref, expected in list(zip(pages_of(str(shared.FOLDER / "pdf_ok" / name)), texts, strict=True))[:3]:
            found = present(ocr.run([present(render.run([ref])[0])])[0])
            scores.append(similarity(found.text[:2_000], expected[:2_000]))
    assert statistics.median(scores) > 0.93
