"""A typed door to pdfium: one document at a time in a process, no pdfium object outlives its document.

pdfium is not thread safe and its handles are raw pointers. So every use goes through ``open_pdf``, which holds a
process-wide lock until the document is closed, and what comes out of it are plain Python values.
"""

from __future__ import annotations

import ctypes
import math
import os
import re
import threading
import zlib
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pypdfium2  # pyright: ignore[reportMissingTypeStubs]
import pypdfium2.raw as pypdfium2_raw  # pyright: ignore[reportMissingTypeStubs]

from rayorch_flows.program.outcomes import CauseKind
from rayorch_flows.stages.files import SourceFailure

_lib: Any = pypdfium2
_raw: Any = pypdfium2_raw
_LOCK: Final = threading.RLock()
_CHAR_SAMPLE: Final = 64
_MAX_FORM_DEPTH: Final = 4
_PIECE: Final = 64
_CONTENTS: Final = re.compile(rb"/Contents\s*(\[[^\]]*\]|\d+ 0 R)")
_REFERENCE: Final = re.compile(rb"(\d+) 0 R")
_LENGTH: Final = re.compile(rb"/Length (\d+)")
_FLATE: Final = re.compile(rb"/Filter\s*\[?\s*/FlateDecode\s*[\]/>]?(?!\s*/\w+Decode)")

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Survey:
    """What lies on a page, counted without drawing it. At most ``limit`` objects are looked at.

    ``image_cover`` is the share of the page under its images (overlaps counted twice, capped at 1),
    ``image_pixels`` the pixels of its largest image.
    """

    texts: int = 0
    paths: int = 0
    images: int = 0
    others: int = 0
    annotations: int = 0
    image_cover: float = 0.0
    image_pixels: int = 0

    @property
    def objects(self) -> int:
        return self.texts + self.paths + self.images + self.others + self.annotations


@dataclass(frozen=True, slots=True)
class CharSample:
    """A sample of a page's characters: the share drawn invisibly, and the share without a Unicode mapping."""

    invisible: float = 0.0
    unmapped: float = 0.0


class Page:
    """A loaded page; use it only inside its ``Document.page`` block."""

    def __init__(self, page: Any, index: int) -> None:
        self._page = page
        self._index = index

    @property
    def size(self) -> tuple[float, float]:
        """Width and height in points, as the page is shown (rotation applied)."""
        width, height = self._page.get_size()
        return float(width), float(height)

    def text(self) -> tuple[str, CharSample]:
        """The text layer in pdfium's reading order with ``\\n`` line ends, and a look at how it is made."""
        try:
            layer = self._page.get_textpage()
        except _lib.PdfiumError:
            return "", CharSample()
        try:
            count = int(layer.count_chars())
            if count <= 0:
                return "", CharSample()
            text = str(layer.get_text_range(0, count))
            return text.replace("\r\n", "\n").replace("\r", "\n"), self._sample(layer, count)
        finally:
            layer.close()

    def survey(self, limit: int = 5_000) -> Survey:
        """Count the page's objects and measure its images."""
        width, height = self.size
        area = width * height
        counts = [0, 0, 0, 0]
        cover = 0.0
        pixels = 0
        looked = 0
        stack: list[tuple[Any, Any, int]] = [(self._page.raw, None, 0)]
        while stack and looked < limit:
            holder, bounds, depth = stack.pop()
            is_form = bounds is not None
            total = (_raw.FPDFFormObj_CountObjects if is_form else _raw.FPDFPage_CountObjects)(holder)
            get = _raw.FPDFFormObj_GetObject if is_form else _raw.FPDFPage_GetObject
            form_has_image = False
            for index in range(max(0, min(int(total), limit - looked))):
                looked += 1
                item = get(holder, index)
                if not item:
                    continue
                kind = int(_raw.FPDFPageObj_GetType(item))
                if kind == _raw.FPDF_PAGEOBJ_TEXT:
                    counts[0] += 1
                elif kind == _raw.FPDF_PAGEOBJ_PATH:
                    counts[1] += 1
                elif kind == _raw.FPDF_PAGEOBJ_IMAGE:
                    counts[2] += 1
                    pixels = max(pixels, _image_pixels(item))
                    if not is_form:
                        cover += _area(item)
                    elif not form_has_image:
                        form_has_image = True
                        cover += bounds
                elif kind == _raw.FPDF_PAGEOBJ_FORM and depth < _MAX_FORM_DEPTH:
                    stack.append((item, bounds if is_form else _area(item), depth + 1))
                else:
                    counts[3] += 1
        return Survey(
            texts=counts[0],
            paths=counts[1],
            images=counts[2],
            others=counts[3],
            annotations=max(0, int(_raw.FPDFPage_GetAnnotCount(self._page.raw))),
            image_cover=min(1.0, cover / area) if area > 0 else 0.0,
            image_pixels=pixels,
        )

    def render(self, scale: float, *, color: bool = False) -> Pixels:
        """Draw the page at ``scale`` pixels a point: rows x columns in grey, or rows x columns x 3 in RGB."""
        bitmap = self._page.render(scale=scale, grayscale=not color, rev_byteorder=color, limit_image_cache=True)
        try:
            pixels = np.array(bitmap.to_numpy(), dtype=np.uint8)
        finally:
            bitmap.close()
        if color:
            return np.ascontiguousarray(pixels[:, :, :3])
        return np.ascontiguousarray(pixels.reshape(pixels.shape[0], pixels.shape[1]))

    def contents_lost(self) -> bool:
        """Whether a page on which nothing is drawn has contents that cannot be unpacked: it is not blank, it is broken.

        pdfium says nothing about it. So the page is copied into a document of its own, and that is looked at.
        """
        copy = _lib.PdfDocument.new()
        try:
            copy.import_pages(self._page.pdf, pages=[self._index])
            buffer = BytesIO()
            copy.save(buffer)
        except _lib.PdfiumError:
            return True
        finally:
            copy.close()
        return _any_stream_lost(buffer.getvalue())

    def _sample(self, layer: Any, count: int) -> CharSample:
        step = max(1, count // _CHAR_SAMPLE)
        seen = invisible = unmapped = 0
        for index in range(0, count, step):
            if _raw.FPDFText_IsGenerated(layer, index) == 1:
                continue
            seen += 1
            unmapped += int(_raw.FPDFText_HasUnicodeMapError(layer, index) == 1)
            item = _raw.FPDFText_GetTextObject(layer, index)
            if item:
                mode = _raw.FPDFTextObj_GetTextRenderMode(item)
                invisible += int(mode in (_raw.FPDF_TEXTRENDERMODE_INVISIBLE, _raw.FPDF_TEXTRENDERMODE_CLIP))
        if not seen:
            return CharSample()
        return CharSample(invisible / seen, unmapped / seen)


class Document:
    """An open document; use it only inside its ``open_pdf`` block."""

    def __init__(self, document: Any) -> None:
        self._document = document

    def __len__(self) -> int:
        return max(0, int(_raw.FPDF_GetPageCount(self._document.raw)))

    @property
    def encrypted(self) -> bool:
        return int(_raw.FPDF_GetSecurityHandlerRevision(self._document.raw)) != -1

    @property
    def version(self) -> str:
        """The PDF version of the header, like ``1.7``; empty if it cannot be told."""
        number = ctypes.c_int()
        if not _raw.FPDF_GetFileVersion(self._document.raw, number) or number.value < 10:
            return ""
        return f"{number.value // 10}.{number.value % 10}"

    def metadata(self, key: str) -> str:
        """One entry of the document information dictionary, such as ``Title``."""
        name = key.encode()
        size = int(_raw.FPDF_GetMetaText(self._document.raw, name, None, 0))
        buffer = ctypes.create_string_buffer(max(size, 2))
        _raw.FPDF_GetMetaText(self._document.raw, name, buffer, size)
        return buffer.raw[:-2].decode("utf-16-le", "replace")

    @contextmanager
    def page(self, index: int) -> Generator[Page]:
        """Load a page. One that cannot be loaded is a SourceFailure(corrupt)."""
        try:
            page = self._document.get_page(index)
        except (_lib.PdfiumError, IndexError) as error:
            raise SourceFailure(CauseKind.CORRUPT, f"page {index + 1} cannot be loaded: {error}") from error
        try:
            yield Page(page, index)
        finally:
            page.close()


@contextmanager
def open_pdf(source: str | bytes) -> Generator[Document]:
    """Open a document from a local path or from memory; an empty user password is tried by pdfium itself."""
    with _LOCK:
        if isinstance(source, bytes):
            handle = _raw.FPDF_LoadMemDocument64(source, len(source), None)
        else:
            handle = _raw.FPDF_LoadDocument(os.fsencode(source) + b"\0", None)
        if not handle:
            raise _cannot_open(int(_raw.FPDF_GetLastError()))
        document = _lib.PdfDocument(handle)
        try:
            yield Document(document)
        finally:
            document.close()


def scale_within(size: tuple[float, float], dpi: float, max_pixels: int, max_side: int) -> float:
    """The scale in pixels a point that gives ``dpi``, lowered until the picture keeps to both limits.

    A page without area cannot be drawn: SourceFailure(corrupt).
    """
    width, height = size
    if not (math.isfinite(width) and math.isfinite(height) and width > 0 and height > 0):
        raise SourceFailure(CauseKind.CORRUPT, f"the page has no area ({width:g} x {height:g} points)")
    scale = min(dpi / 72, math.sqrt(max_pixels) / math.sqrt(width) / math.sqrt(height))
    return min(scale, max_side / width, max_side / height)


def _cannot_open(code: int) -> SourceFailure:
    """pdfium's last error, which it sets only when it gives no document back: otherwise it is an older one."""
    if code == _raw.FPDF_ERR_PASSWORD:
        return SourceFailure(CauseKind.ENCRYPTED, "encrypted: it needs a password to open")
    if code == _raw.FPDF_ERR_SECURITY:
        return SourceFailure(CauseKind.ENCRYPTED, "encrypted with a security scheme that cannot be opened")
    if code == _raw.FPDF_ERR_FILE:
        return SourceFailure(CauseKind.UNREADABLE, "the file cannot be read", retryable=True)
    return SourceFailure(CauseKind.CORRUPT, f"not a PDF that can be opened (pdfium error {code})")


def _any_stream_lost(pdf: bytes) -> bool:
    """Whether a content stream of a document that pdfium has written gives nothing but a decoding error."""
    contents = _CONTENTS.search(pdf)
    for number in _REFERENCE.findall(contents.group(1)) if contents else []:
        found = re.search(rb"\n%b 0 obj\r?\n<<([^>]*)>>stream\r?\n" % number, pdf)
        length = _LENGTH.search(found.group(1)) if found else None
        if found is None or length is None or _FLATE.search(found.group(1)) is None:
            continue
        data = pdf[found.end() : found.end() + int(length.group(1))]
        unpacker = zlib.decompressobj()
        unpacked = b""
        try:
            for start in range(0, len(data), _PIECE):
                unpacked += unpacker.decompress(data[start : start + _PIECE])
        except zlib.error:
            if not unpacked.strip():
                return True
    return False


def _area(item: Any) -> float:
    left, bottom, right, top = (ctypes.c_float() for _ in range(4))
    if not _raw.FPDFPageObj_GetBounds(item, left, bottom, right, top):
        return 0.0
    return max(0.0, right.value - left.value) * max(0.0, top.value - bottom.value)


def _image_pixels(item: Any) -> int:
    width, height = ctypes.c_uint(), ctypes.c_uint()
    if not _raw.FPDFImageObj_GetImagePixelSize(item, width, height):
        return 0
    return width.value * height.value
