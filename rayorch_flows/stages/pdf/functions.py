"""Functions that take a PDF apart into pages and put its record together again."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from rayorch_flows.program.outcomes import MISSING, RETRYABLE_KINDS, CauseKind, GroupFailure, Hole, RecordFailure
from rayorch_flows.stages import files
from rayorch_flows.stages.files import SourceFailure
from rayorch_flows.stages.pdf import pdfium
from rayorch_flows.stages.pdf.text_layer import Layer, clean, judge

T = TypeVar("T")

MIB: Final = 1024 * 1024
_HEAD: Final = 1024
_MAX_METADATA: Final = 2_000
_MAX_SCAN: Final = 64 * MIB
_PAGES: Final = re.compile(rb"/Count\s+[1-9]|/Type\s*/Page\b")


@dataclass(frozen=True, slots=True)
class PageRef:
    """A page without its content: a few bytes, so that thousands of them cost nothing."""

    uri: str
    index: int
    version: str


@dataclass(frozen=True, slots=True)
class PdfInfo:
    """What a document says about itself."""

    uri: str
    n_pages: int
    nbytes: int
    pdf_version: str
    encrypted: bool
    title: str
    author: str
    subject: str
    keywords: str
    creator: str
    producer: str
    created: str
    modified: str


@dataclass(frozen=True, slots=True)
class PageText:
    """The text of one page. ``source`` is ``layer``, ``ocr`` or ``blank``; ``confidence`` (0 to 1) is OCR's."""

    text: str
    source: str
    confidence: float = math.nan


@dataclass(frozen=True, slots=True)
class PageImage:
    """A drawn page: rows x columns in grey, or rows x columns x 3 in RGB."""

    pixels: pdfium.Pixels
    dpi: float


class OpenPdf:
    """URI -> (list of PageRef, PdfInfo). Sniffs, opens, counts; a file that is no usable PDF fails with its kind."""

    def __init__(self, *, max_bytes: int = 1024 * MIB, max_pages: int = 10_000) -> None:
        self.max_bytes = max_bytes
        self.max_pages = max_pages

    def run(self, uris: list[str]) -> tuple[list[list[PageRef] | RecordFailure], list[PdfInfo | RecordFailure]]:
        pages: list[list[PageRef] | RecordFailure] = []
        infos: list[PdfInfo | RecordFailure] = []
        for uri in uris:
            try:
                refs, info = self._open(uri)
            except SourceFailure as failure:
                refs = info = _record_failure(failure)
            pages.append(refs)
            infos.append(info)
        return pages, infos

    def _open(self, uri: str) -> tuple[list[PageRef], PdfInfo]:
        stat = files.stat(uri)
        if stat.nbytes > self.max_bytes:
            raise SourceFailure(
                CauseKind.TOO_LARGE, f"{stat.nbytes:,} bytes, more than the limit of {self.max_bytes:,}"
            )
        if stat.path is None:
            source: str | bytes = files.read_all(uri, self.max_bytes)
            head, nbytes = source[:_HEAD], len(source)
        else:
            source, nbytes = stat.path, stat.nbytes
            head = files.read_head(uri, _HEAD)
        sniff(head)
        with pdfium.open_pdf(source) as document:
            count = len(document)
            if count == 0:
                raise _no_pages(document, source)
            if count > self.max_pages:
                raise SourceFailure(CauseKind.TOO_LARGE, f"{count:,} pages, more than the limit of {self.max_pages:,}")
            info = _describe(document, uri, count, nbytes)
        return [PageRef(uri, index, stat.version) for index in range(count)], info


class TextLayer:
    """PageRef -> (PageText, needs OCR?). Parent-bound: a document is opened once per dispatch batch."""

    def __init__(self, *, max_bytes: int = 1024 * MIB) -> None:
        self._shelf = _Shelf(max_bytes)

    def run(
        self, refs: list[PageRef]
    ) -> tuple[
        list[PageText | RecordFailure | GroupFailure],
        list[bool | RecordFailure | GroupFailure],
    ]:
        results = self._shelf.each_page(refs, _read_layer)
        texts: list[PageText | RecordFailure | GroupFailure] = []
        masks: list[bool | RecordFailure | GroupFailure] = []
        for result in results:
            if isinstance(result, RecordFailure | GroupFailure):
                texts.append(result)
                masks.append(result)
            else:
                texts.append(result[0])
                masks.append(result[1])
        return texts, masks


class Render:
    """PageRef -> PageImage. Parent-bound. The size is capped before anything is drawn, so a page as big as a wall,
    or one that holds such a picture, cannot eat the memory."""

    def __init__(
        self,
        *,
        dpi: float = 200,
        color: bool = False,
        max_pixels: int = 16_000_000,
        max_side: int = 16_000,
        max_image_pixels: int = 400_000_000,
        max_bytes: int = 1024 * MIB,
    ) -> None:
        self.dpi = dpi
        self.color = color
        self.max_pixels = max_pixels
        self.max_side = max_side
        self.max_image_pixels = max_image_pixels
        self._shelf = _Shelf(max_bytes)

    def run(self, refs: list[PageRef]) -> list[PageImage | RecordFailure | GroupFailure]:
        return self._shelf.each_page(refs, self._draw)

    def _draw(self, page: pdfium.Page, ref: PageRef) -> PageImage:
        scale = pdfium.scale_within(page.size, self.dpi, self.max_pixels, self.max_side)
        embedded = page.survey().image_pixels
        if embedded > self.max_image_pixels:
            raise SourceFailure(
                CauseKind.TOO_LARGE,
                f"page {ref.index + 1} holds a picture of {embedded:,} pixels, more than the limit of "
                f"{self.max_image_pixels:,}",
            )
        return PageImage(page.render(scale, color=self.color), scale * 72)


class JoinPage:
    """(text layer, recognised text or MISSING) -> PageText: the recognised text where there is one."""

    def run(self, layers: list[PageText], recognised: list[PageText | Any]) -> list[PageText]:
        return [layer if ocr is MISSING else ocr for layer, ocr in zip(layers, recognised, strict=True)]


class AssembleMarkdown:
    """(PdfInfo, pages in order, holes among them) -> the document's record.

    A page that was lost leaves ``[page 3 missing: worker_crash]``. A document of which no page is left has
    failed: it gets the cause of its first page.
    """

    def run(self, infos: list[PdfInfo], pages: list[list[PageText | Hole]]) -> list[dict[str, Any] | RecordFailure]:
        return [self._assemble(info, parts) for info, parts in zip(infos, pages, strict=True)]

    def _assemble(self, info: PdfInfo, pages: Sequence[PageText | Hole]) -> dict[str, Any] | RecordFailure:
        texts = [page for page in pages if isinstance(page, PageText)]
        holes = [page for page in pages if isinstance(page, Hole)]
        if holes and not texts:
            first = holes[0]
            return RecordFailure(
                f"no page can be used, of the first: {first.cause}",
                kind=first.cause_kind,
                retryable=first.cause_kind in RETRYABLE_KINDS,
            )
        confidences = [page.confidence for page in texts if page.source == "ocr" and page.text]
        return {
            "markdown": to_markdown(pages),
            "n_pages": len(pages),
            "n_text_pages": sum(page.source == "layer" for page in texts),
            "n_ocr_pages": sum(page.source == "ocr" for page in texts),
            "n_blank_pages": sum(page.source == "blank" for page in texts),
            "n_holes": len(holes),
            "n_chars": sum(len(page.text) for page in texts),
            "ocr_confidence": sum(confidences) / len(confidences) if confidences else None,
            "title": info.title,
            "author": info.author,
            "subject": info.subject,
            "keywords": info.keywords,
            "creator": info.creator,
            "producer": info.producer,
            "created": info.created,
            "modified": info.modified,
            "pdf_version": info.pdf_version,
            "encrypted": info.encrypted,
        }


def to_markdown(pages: Sequence[PageText | Hole]) -> str:
    """The pages in order, each after a comment that names it."""
    parts: list[str] = []
    for number, page in enumerate(pages, 1):
        parts.append(f"<!-- page {number} -->")
        if isinstance(page, Hole):
            parts.append(f"[page {number} missing: {page.cause_kind.value}]")
        elif page.text:
            parts.append(page.text)
    return "\n\n".join(parts) + "\n"


def sniff(head: bytes) -> None:
    """Refuse a file whose first bytes say that it is no PDF, whatever its name."""
    if not head.strip(b"\0 \t\r\n"):
        what = "zero bytes" if not head else "nothing but white space at its start"
        raise SourceFailure(CauseKind.EMPTY, what)
    if b"%PDF-" in head:
        return
    if b" obj" in head or b"startxref" in head or head.startswith(b"trailer"):
        raise SourceFailure(CauseKind.CORRUPT, "a PDF without its header")
    for magic, name in _MAGIC:
        if head.lstrip().lower().startswith(magic):
            raise SourceFailure(CauseKind.UNSUPPORTED, f"not a PDF: it looks like {name}")
    raise SourceFailure(CauseKind.UNSUPPORTED, f"not a PDF: it starts with {head[:16]!r}")


_MAGIC: Final = (
    (b"<!doctype html", "an HTML page"),
    (b"<html", "an HTML page"),
    (b"<?xml", "XML"),
    (b"\x89png", "a PNG picture"),
    (b"\xff\xd8\xff", "a JPEG picture"),
    (b"ii*\0", "a TIFF picture"),
    (b"mm\0*", "a TIFF picture"),
    (b"gif8", "a GIF picture"),
    (b"pk\x03\x04", "a ZIP archive or an office document"),
    (b"\xd0\xcf\x11\xe0", "an old office document"),
    (b"\x1f\x8b", "gzip data"),
    (b"%!ps", "PostScript"),
    (b"{\\rtf", "RTF"),
    (b"version https://git-lfs", "a pointer to a large file that was not fetched"),
)


class _Shelf:
    """Opens the documents that a batch of pages belongs to, and keeps the last one's bytes if they came from afar."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._kept: tuple[str, str, bytes] | None = None

    def each_page(
        self, refs: Sequence[PageRef], use: Callable[[pdfium.Page, PageRef], T]
    ) -> list[T | RecordFailure | GroupFailure]:
        """Apply ``use`` to every page, each document opened once.

        A page that fails is a RecordFailure; a document that cannot be opened any more is a GroupFailure, since
        its other pages would fail in the same way.
        """
        results: dict[int, T | RecordFailure | GroupFailure] = {}
        rows: dict[tuple[str, str], list[int]] = {}
        for row, ref in enumerate(refs):
            rows.setdefault((ref.uri, ref.version), []).append(row)
        for (uri, version), members in rows.items():
            try:
                with self._open(uri, version) as document:
                    for row in members:
                        results[row] = _use_page(document, refs[row], use)
            except SourceFailure as failure:
                lost = GroupFailure(failure.message, kind=failure.kind, retryable=failure.retryable)
                results.update(dict.fromkeys(members, lost))
        return [results[row] for row in range(len(refs))]

    @contextmanager
    def _open(self, uri: str, version: str) -> Generator[pdfium.Document]:
        stat = files.stat(uri)
        if stat.version != version:
            raise SourceFailure(CauseKind.UNREADABLE, f"{uri} changed while it was being read", retryable=True)
        with pdfium.open_pdf(stat.path or self._fetch(uri, version)) as document:
            yield document

    def _fetch(self, uri: str, version: str) -> bytes:
        if self._kept is not None and self._kept[:2] == (uri, version):
            return self._kept[2]
        self._kept = None
        data = files.read_all(uri, self._max_bytes)
        self._kept = (uri, version, data)
        return data


def _use_page(document: pdfium.Document, ref: PageRef, use: Callable[[pdfium.Page, PageRef], T]) -> T | RecordFailure:
    try:
        with document.page(ref.index) as page:
            return use(page, ref)
    except SourceFailure as failure:
        return _record_failure(failure)


def _read_layer(page: pdfium.Page, ref: PageRef) -> tuple[PageText, bool]:
    text, sample = page.text()
    layer = judge(text, sample, page.survey())
    if layer is Layer.BLANK:
        if page.contents_lost():
            raise SourceFailure(CauseKind.CORRUPT, f"the contents of page {ref.index + 1} cannot be unpacked")
        return PageText("", "blank"), False
    return PageText(clean(text), "layer"), layer.needs_ocr


def _no_pages(document: pdfium.Document, source: str | bytes) -> SourceFailure:
    """An empty document, or one whose page tree cannot be found: the file itself then speaks of pages."""
    if document.encrypted:
        return SourceFailure(CauseKind.ENCRYPTED, "encrypted: no page can be found without its password")
    data = source if isinstance(source, bytes) else files.read_head(source, _MAX_SCAN)
    if _PAGES.search(data):
        return SourceFailure(CauseKind.CORRUPT, "none of the document's pages can be found")
    return SourceFailure(CauseKind.EMPTY, "the document has no pages")


def _record_failure(failure: SourceFailure) -> RecordFailure:
    return RecordFailure(failure.message, kind=failure.kind, retryable=failure.retryable)


def _describe(document: pdfium.Document, uri: str, n_pages: int, nbytes: int) -> PdfInfo:
    def entry(key: str) -> str:
        return " ".join(clean(document.metadata(key))[:_MAX_METADATA].split())

    return PdfInfo(
        uri=uri,
        n_pages=n_pages,
        nbytes=nbytes,
        pdf_version=document.version,
        encrypted=document.encrypted,
        title=entry("Title"),
        author=entry("Author"),
        subject=entry("Subject"),
        keywords=entry("Keywords"),
        creator=entry("Creator"),
        producer=entry("Producer"),
        created=entry("CreationDate"),
        modified=entry("ModDate"),
    )
