"""Joining and assembling: the record, page breaks, numbered holes."""

from __future__ import annotations

from typing import Any

from rayorch_flows.program.outcomes import MISSING, CauseKind, Hole
from rayorch_flows.stages.pdf import AssembleMarkdown, JoinPage, PageText, PdfInfo
from tests.stages.helpers import failure, present

INFO = PdfInfo("a.pdf", 4, 10, "1.7", False, "T", "A", "S", "K", "C", "P", "D:2020", "D:2021")
LAYER = PageText("One", "layer")
OCR = PageText("Two", "ocr", 0.5)
BLANK = PageText("", "blank")
CRASH = Hole(CauseKind.WORKER_CRASH, "the worker died")


def record(*pages: PageText | Hole) -> dict[str, Any]:
    return present(AssembleMarkdown().run([INFO], [list(pages)])[0])


def test_recognised_text_wins_over_a_poor_layer() -> None:
    assert JoinPage().run([LAYER, LAYER], [MISSING, OCR]) == [LAYER, OCR]


def test_pages_follow_each_other_with_breaks_and_holes() -> None:
    assert record(LAYER, OCR, CRASH, BLANK)["markdown"] == (
        "<!-- page 1 -->\n\nOne\n\n<!-- page 2 -->\n\nTwo\n\n"
        "<!-- page 3 -->\n\n[page 3 missing: worker_crash]\n\n<!-- page 4 -->\n"
    )


def test_the_record_counts_what_became_of_the_pages() -> None:
    found = record(LAYER, OCR, CRASH, BLANK, PageText("Four", "ocr", 1.0))
    counts = {key: found[key] for key in found if key.startswith("n_")}
    assert counts == {
        "n_pages": 5,
        "n_text_pages": 1,
        "n_ocr_pages": 2,
        "n_blank_pages": 1,
        "n_holes": 1,
        "n_chars": 10,
    }
    assert found["ocr_confidence"] == 0.75
    assert (found["title"], found["producer"], found["pdf_version"]) == ("T", "P", "1.7")


def test_without_recognition_there_is_no_confidence() -> None:
    assert record(LAYER)["ocr_confidence"] is None


def test_a_document_without_a_usable_page_fails_with_its_first_cause() -> None:
    torn = Hole(CauseKind.CORRUPT, "torn")
    result = AssembleMarkdown().run([INFO, INFO, INFO], [[torn, CRASH], [CRASH, LAYER], [CRASH]])
    assert failure(result[0]).kind == "corrupt"
    assert "torn" in failure(result[0]).cause
    assert not failure(result[0]).retryable
    assert present(result[1])["n_holes"] == 1
    assert failure(result[2]).retryable, "another attempt may do better"
