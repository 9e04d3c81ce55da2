"""RapidOCR on ONNX Runtime (the ``rapidocr`` extra): Chinese and English, its models out of its own package."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from rayorch_flows.program.outcomes import RecordFailure

# By these names in what the fingerprint reads: another one would ingest every corpus again.
from rayorch_flows.stages.ocr.images import each_image as _each
from rayorch_flows.stages.ocr.images import is_uniform as _is_uniform
from rayorch_flows.stages.pdf.functions import PageImage, PageText
from rayorch_flows.stages.pdf.text_layer import clean


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
