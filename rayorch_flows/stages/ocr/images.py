"""What every recognition does with a batch of page images: one result a row, whatever fails."""

from __future__ import annotations

from collections.abc import Callable

from rayorch_flows.program.outcomes import RecordFailure
from rayorch_flows.stages.files import SourceFailure
from rayorch_flows.stages.pdf.functions import PageImage, PageText
from rayorch_flows.stages.pdf.pdfium import Pixels


def is_uniform(pixels: Pixels) -> bool:
    """Nothing is drawn: all pixels are nearly the same."""
    return pixels.size == 0 or int(pixels.max()) - int(pixels.min()) < 8


def each_image(images: list[PageImage], recognise: Callable[[PageImage], PageText]) -> list[PageText | RecordFailure]:
    results: list[PageText | RecordFailure] = []
    for image in images:
        try:
            results.append(recognise(image))
        except SourceFailure as failure:
            results.append(RecordFailure(failure.message, kind=failure.kind, retryable=failure.retryable))
        except (RuntimeError, ValueError) as error:
            results.append(RecordFailure(f"{type(error).__name__}: {error}"))
    return results
