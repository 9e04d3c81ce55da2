"""The PDF flow: documents into Markdown, scanned pages recognised, every page accounted for."""

from __future__ import annotations

import os
from typing import Final, Literal

from rayorch_flows import F, Pipeline, Port, RayModule, RecoveryPolicy
from rayorch_flows.orchestration.ingest.flow_definition import FlowDefinition
from rayorch_flows.records.arrow import pa
from rayorch_flows.stages.ocr import RapidOcr, TesseractOcr
from rayorch_flows.stages.pdf import AssembleMarkdown, JoinPage, OpenPdf, Render, TextLayer

_MIB: Final = 1024 * 1024

RECORD: Final = pa.schema(
    [
        pa.field("markdown", pa.string()),
        pa.field("n_pages", pa.int32()),
        pa.field("n_text_pages", pa.int32()),
        pa.field("n_ocr_pages", pa.int32()),
        pa.field("n_blank_pages", pa.int32()),
        pa.field("n_holes", pa.int32()),
        pa.field("n_chars", pa.int64()),
        pa.field("ocr_confidence", pa.float64()),
        pa.field("title", pa.string()),
        pa.field("author", pa.string()),
        pa.field("subject", pa.string()),
        pa.field("keywords", pa.string()),
        pa.field("creator", pa.string()),
        pa.field("producer", pa.string()),
        pa.field("created", pa.string()),
        pa.field("modified", pa.string()),
        pa.field("pdf_version", pa.string()),
        pa.field("encrypted", pa.bool_()),
    ]
)


class PdfPipeline(Pipeline):
    """URI strings in, one record a document out.

    The settle comes after the join, so that a page which fails anywhere on its way, in its text layer, its picture or
    its recognition, leaves a numbered hole with the first cause, and its document lives.
    """

    def __init__(
        self,
        *,
        ocr: Literal["tesseract", "rapidocr"] = "tesseract",
        lang: str = "eng",
        dpi: float = 200,
        max_mib: int = 1024,
        max_pages: int = 10_000,
        ocr_replicas: int | None = None,
    ) -> None:
        super().__init__()
        max_bytes = max_mib * _MIB
        self.open = _light(RayModule(OpenPdf).pre_init(max_bytes=max_bytes, max_pages=max_pages).returns(2), 8)
        self.text_layer = _light(RayModule(TextLayer).pre_init(max_bytes=max_bytes).returns(2), 64, parent_bound=True)
        self.render = _light(RayModule(Render).pre_init(dpi=dpi, max_bytes=max_bytes), 8, parent_bound=True)
        self.render.ray_options(max_ready_bytes=256 * _MIB)
        recognise = RayModule(TesseractOcr).pre_init(lang=lang) if ocr == "tesseract" else RayModule(RapidOcr)
        self.ocr = recognise.ray_options(
            replicas=ocr_replicas or _cores(),
            batch_size=4,
            num_cpus=0.5,
            recovery=RecoveryPolicy.isolate_tail(),
            deadline_s=180,
        )
        self.join = _light(RayModule(JoinPage), 64)
        self.assemble = _light(RayModule(AssembleMarkdown), 8)

    def forward(self, uris: Port) -> Port:
        refs, info = self.open(uris)
        pages = F.expand(refs, name="page")
        layer, needs_ocr = self.text_layer(pages)
        recognised = self.ocr(self.render(F.filter(pages, needs_ocr)))
        page = self.join(layer, F.optional(recognised))
        return self.assemble(info, F.reduce(F.settle(page)))


def _light(module: RayModule, batch_size: int, *, parent_bound: bool = False) -> RayModule:
    """A Function that shares its core with others; a file that hangs or kills it is found, and stands alone."""
    return module.ray_options(
        batch_size=batch_size,
        batching="parent_bound" if parent_bound else "elastic",
        num_cpus=0.1,
        recovery=RecoveryPolicy.isolate_tail(),
        deadline_s=60,
    )


def _cores() -> int:
    return max(1, len(os.sched_getaffinity(0)))


FLOW: Final = FlowDefinition("pdf", PdfPipeline, RECORD, ("*.pdf", "*.PDF"))
