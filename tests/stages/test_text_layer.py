"""Which pages keep their own text, and which go on to be recognised."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import fsspec
import pytest

from rayorch_flows.program.outcomes import GroupFailure, RecordFailure
from rayorch_flows.stages import files
from rayorch_flows.stages.pdf import PageText, TextLayer
from rayorch_flows.stages.pdf.pdfium import CharSample, Survey
from rayorch_flows.stages.pdf.text_layer import Layer, clean, garbage_share, judge, natural_share, vowelless_share
from tests.corpus import pdfs
from tests.stages.helpers import failure, pages_of, present, write

ENGLISH = "The depth of the channel was recorded before the end of the month. " * 4
DRAWN = Survey(texts=10)
COVERED = Survey(texts=10, images=1, image_cover=0.97)


@pytest.mark.parametrize(
    ("text", "sample", "survey", "layer"),
    [
        (ENGLISH, CharSample(), DRAWN, Layer.GOOD),
        ("Hi", CharSample(), DRAWN, Layer.GOOD),
        (ENGLISH, CharSample(), COVERED, Layer.GOOD),
        ("", CharSample(), Survey(), Layer.BLANK),
        (" \n ", CharSample(), Survey(), Layer.BLANK),
        ("", CharSample(), Survey(paths=1), Layer.NO_TEXT),
        ("", CharSample(), Survey(annotations=1), Layer.NO_TEXT),
        ("7", CharSample(), COVERED, Layer.SPARSE),
        (ENGLISH, CharSample(invisible=0.9), COVERED, Layer.INVISIBLE),
        (ENGLISH, CharSample(unmapped=0.9), DRAWN, Layer.GOOD),
        ("/-,0 1 23'',4 #$%a \x01b", CharSample(unmapped=0.9), DRAWN, Layer.UNMAPPED),
        ("IFMMP XPSME UIJT JT B TIJGU " * 9, CharSample(unmapped=0.9), DRAWN, Layer.UNMAPPED),
        ("\ufffd\ufffd\ufffd ab", CharSample(), DRAWN, Layer.GARBAGE),
        ("".join(chr(0xE000 + n) for n in range(50)), CharSample(), DRAWN, Layer.GARBAGE),
        ("Bcdfg hjklm npqrs twxzb " * 10, CharSample(), DRAWN, Layer.GARBAGE),
        ("人人生而自由，在尊严和权利上一律平等。" * 3, CharSample(), DRAWN, Layer.GOOD),
        ("يولد جميع الناس أحرارا متساوين في الكرامة والحقوق", CharSample(), DRAWN, Layer.GOOD),
    ],
)
def test_judgement(text: str, sample: CharSample, survey: Survey, layer: Layer) -> None:
    assert judge(text, sample, survey) is layer
    assert layer.needs_ocr is (layer not in (Layer.GOOD, Layer.BLANK))


def test_shares() -> None:
    assert garbage_share("") == 0
    assert garbage_share("ab\x00\ufffd") == 0.5
    assert vowelless_share("Bcdf " * 19) == 0, "too few words to tell"
    assert vowelless_share("Bcdf " * 20) == 1
    assert natural_share("Łódź 12.5% (O'Neill) 2/3 x1y2z3") == 0.8


def test_clean_text_is_valid_and_tidy() -> None:
    raw = "exam\ufffe\r\nple \t\r\n\r\n\r\n\r\nnul\x00 bell\x07 lone \ud800 pair \ud83d\udc22 soft\x02\nend\n\n"
    text = clean(raw)
    assert text == "exam-\nple\n\nnul bell lone \ufffd pair \U0001f422 soft-\nend"
    text.encode("utf-8")


@pytest.mark.parametrize(
    ("build", "needs_ocr"),
    [
        (lambda: pdfs.mixed("dsb"), [False, True, False]),
        (pdfs.hidden_layer, [True]),
        (pdfs.stamped_scan, [True]),
        (pdfs.form_scan, [True]),
        (pdfs.outlines, [True]),
        (pdfs.unmapped_font, [True]),
        (pdfs.owner_locked, [False]),
        (pdfs.huge_page, [True]),
    ],
    ids=["mixed", "hidden", "stamped", "form", "outlines", "unmapped", "owner_locked", "huge"],
)
def test_pages_are_sorted(tmp_path: Path, build: Callable[[], bytes], needs_ocr: list[bool]) -> None:
    _, masks = TextLayer().run(pages_of(write(tmp_path, build())))
    assert masks == needs_ocr
    assert all(type(mask) is bool for mask in masks)


def test_text_comes_out_as_it_was_written(tmp_path: Path) -> None:
    texts, _ = TextLayer().run(pages_of(write(tmp_path, pdfs.good(2))))
    assert texts[1] == PageText("\n".join(("Page 2", *pdfs.PROSE)), "layer", present(texts[1]).confidence)


@pytest.mark.parametrize("build", [pdfs.missing_page, pdfs.broken_content])
def test_a_broken_page_fails_alone(tmp_path: Path, build: Callable[[], bytes]) -> None:
    texts, masks = TextLayer().run(pages_of(write(tmp_path, build())))
    assert [isinstance(text, RecordFailure) for text in texts] == [False, True, False]
    assert failure(texts[1]).kind == "corrupt"
    assert "page 2" in failure(texts[1]).cause
    assert failure(masks[1]) == failure(texts[1])
    assert present(texts[2]).text.startswith("Page 3")


def test_a_blank_page_is_not_taken_for_a_broken_one(tmp_path: Path) -> None:
    texts, masks = TextLayer().run(pages_of(write(tmp_path, pdfs.mixed("bbb"))))
    assert [present(text).source for text in texts] == ["blank"] * 3
    assert masks == [False] * 3


def test_a_batch_may_hold_pages_of_several_documents_in_any_order(tmp_path: Path) -> None:
    a = pages_of(write(tmp_path, pdfs.good(2), "a.pdf"))
    b = pages_of(write(tmp_path, pdfs.mixed("sd"), "b.pdf"))
    texts, masks = TextLayer().run([a[1], b[0], a[0], b[1]])
    assert [present(text).text[:6] for text in texts] == ["Page 2", "", "Page 1", "Page 2"]
    assert masks == [False, True, False, False]


def test_a_document_is_opened_once_in_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refs = pages_of(write(tmp_path, pdfs.good(5)))
    looked: list[str] = []
    original = files.stat
    monkeypatch.setattr(files, "stat", lambda uri: looked.append(uri) or original(uri))
    TextLayer().run(refs)
    assert looked == [refs[0].uri]


def test_a_remote_document_is_fetched_once_for_many_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec.filesystem("memory").pipe("/t.pdf", pdfs.good(4))
    refs = pages_of("memory://t.pdf")
    fetched: list[str] = []
    original = files.read_all
    monkeypatch.setattr(files, "read_all", lambda uri, limit: fetched.append(uri) or original(uri, limit))
    layer = TextLayer()
    for ref in refs:
        assert present(layer.run([ref])[0][0]).text
    assert fetched == ["memory://t.pdf"]


def test_a_document_that_is_gone_or_changed_takes_its_pages_along_and_no_others(tmp_path: Path) -> None:
    gone = pages_of(write(tmp_path, pdfs.good(2), "gone.pdf"))
    changed = pages_of(write(tmp_path, pdfs.good(2), "changed.pdf"))
    stays = pages_of(write(tmp_path, pdfs.good(2), "stays.pdf"))
    (tmp_path / "gone.pdf").unlink()
    (tmp_path / "changed.pdf").write_bytes(pdfs.good(3))
    texts, _ = TextLayer().run([gone[0], stays[0], changed[0], gone[1], stays[1]])
    assert [isinstance(text, GroupFailure) for text in texts] == [True, False, True, True, False]
    assert {failure(texts[row]).kind for row in (0, 2, 3)} == {"unreadable"}
    assert "changed while" in failure(texts[2]).cause
    assert all(failure(texts[row]).retryable for row in (0, 2, 3))
