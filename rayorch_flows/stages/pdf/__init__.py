"""PDF files into pages: opening, text layer, drawing, and the document's record put together again.

Behind ``pdfium.py`` is the library that parses; nobody else touches it.
"""

from rayorch_flows.stages.pdf.functions import (
    AssembleMarkdown,
    JoinPage,
    OpenPdf,
    PageImage,
    PageRef,
    PageText,
    PdfInfo,
    Render,
    TextLayer,
)

__all__ = [
    "AssembleMarkdown",
    "JoinPage",
    "OpenPdf",
    "PageImage",
    "PageRef",
    "PageText",
    "PdfInfo",
    "Render",
    "TextLayer",
]
