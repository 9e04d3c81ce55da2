"""The PDF stages called by hand, for the systems that know nothing of them."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.ledger import Ledger
from rayorch_flows.program.outcomes import MISSING, GroupFailure, Hole, RecordFailure
from rayorch_flows.stages.ocr import TesseractOcr
from rayorch_flows.stages.pdf import AssembleMarkdown, JoinPage, OpenPdf, PageRef, Render, TextLayer

Lost = (RecordFailure, GroupFailure)


class Pages:
    """Text layer, rendering and OCR of pages of one document, in one process."""

    def __init__(self) -> None:
        self.layer = TextLayer()
        self.render = Render()
        self.ocr = TesseractOcr()
        self.join = JoinPage()
        self.ledger = Ledger("page")

    def run(self, refs: list[PageRef]) -> list[Any]:
        """One PageText a page, or a Hole."""
        start = time.time()
        pages = self._run(refs)
        self.ledger.write(start, len(refs))
        return pages

    def _run(self, refs: list[PageRef]) -> list[Any]:
        layers, masks = self.layer.run(refs)
        pages: list[Any] = list(layers)
        scanned = [i for i, mask in enumerate(masks) if mask is True]
        images = self.render.run([refs[i] for i in scanned]) if scanned else []
        drawn = [(i, image) for i, image in zip(scanned, images, strict=True) if not isinstance(image, Lost)]
        for i, image in zip(scanned, images, strict=True):
            if isinstance(image, Lost):
                pages[i] = image
        read = self.ocr.run([image for _, image in drawn]) if drawn else []
        for (i, _), text in zip(drawn, read, strict=True):
            pages[i] = text
        joined = [page if isinstance(page, Lost) else self.join.run([page], [MISSING])[0] for page in pages]
        return [Hole(page.kind, str(page.cause)) if isinstance(page, Lost) else page for page in joined]


class Document:
    """A whole document in one process."""

    def __init__(self) -> None:
        self.open = OpenPdf()
        self.pages = Pages()
        self.assemble = AssembleMarkdown()

    def run(self, uri: str) -> Any:
        """The record, or None for a document that cannot be read."""
        (refs,), (info,) = self.open.run([uri])
        if isinstance(refs, RecordFailure):
            return None
        return whole(self.assemble, info, self.pages.run(refs))


def whole(assemble: AssembleMarkdown, info: Any, pages: list[Any]) -> Any:
    record = assemble.run([info], [pages])[0]
    return None if isinstance(record, Lost) else record
