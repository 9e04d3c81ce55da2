"""PDFs that something is wrong with, and good ones to set beside them. Every builder returns the file's bytes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from PIL import Image, ImageOps

from rayorch_flows.stages.samples.pdf_corpus import page_image
from rayorch_flows.stages.samples.pdf_writer import PdfWriter, text_content

PROSE = (
    "The survey team recorded the depth of the channel before the end of the month.",
    "Our second instrument compared two samples of river clay after a long discussion.",
    "Nobody in the village returned the missing ledger pages while the road was still",
    "closed, and the harbour office kept the original of every letter in a safe.",
)


def good(pages: int = 3, *, info: dict[str, str] | None = None) -> bytes:
    """Born-digital pages; page n starts with "Page n"."""
    writer = PdfWriter(info)
    for number in range(1, pages + 1):
        writer.add_text_page((f"Page {number}", *PROSE))
    return writer.to_bytes()


def scan(pages: int = 1, lines: Sequence[str] = PROSE) -> bytes:
    """Pages that are pictures of text."""
    writer = PdfWriter()
    for number in range(pages):
        writer.add_image_page(page_image(lines, number))
    return writer.to_bytes()


def mixed(kinds: str) -> bytes:
    """One letter a page: d born-digital, s scanned, b blank, x in the page tree but missing from the file."""
    writer = PdfWriter()
    for number, kind in enumerate(kinds, 1):
        if kind == "s":
            writer.add_image_page(page_image((f"Scan {number}", *PROSE), number))
        elif kind == "d":
            writer.add_text_page((f"Page {number}", *PROSE))
        elif kind == "b":
            writer.add_page(b"")
        elif kind == "x":
            writer.add_page_object(writer.add(b"null"))
        else:
            raise ValueError(kind)
    return writer.to_bytes()


def encrypted() -> bytes:
    """Needs a password."""
    writer = PdfWriter({"Title": "Secret"}, user_password="sesame")
    writer.add_text_page(PROSE)
    return writer.to_bytes()


def owner_locked() -> bytes:
    """Encrypted under an empty user password: everybody may open it."""
    writer = PdfWriter({"Title": "Open to all"}, user_password="")
    writer.add_text_page(PROSE)
    return writer.to_bytes()


def truncated() -> bytes:
    data = good()
    return data[: len(data) // 2]


def header_only() -> bytes:
    return b"%PDF-1.7\n%%EOF\n"


def zero_bytes() -> bytes:
    return b""


def white_space() -> bytes:
    return b"\n \0" * 500


def html() -> bytes:
    return b"<!DOCTYPE html>\n<html><body>404 Not Found</body></html>\n"


def png() -> bytes:
    return b"\x89PNG\r\n\x1a\n" + bytes(64)


def prose_file() -> bytes:
    return b"not even a PDF file\n"


def headless() -> bytes:
    """A PDF whose header line is gone."""
    return good().split(b"\n", 2)[2]


def zero_pages() -> bytes:
    return PdfWriter().to_bytes()


def lost_page_tree() -> bytes:
    """One page, and it is missing."""
    return good(1).replace(b"/Kids [4 0 R] /Count 1", b"/Kids [null] /Count 1")


def orphaned_pages() -> bytes:
    """An empty page tree in a file that holds pages."""
    return re.sub(rb"/Kids \[[^]]*\] /Count 2", b"/Kids [] /Count 0", good(2))


def many_pages(pages: int = 1_000) -> bytes:
    writer = PdfWriter()
    for number in range(pages):
        writer.add_page(text_content((f"Page {number + 1}",)))
    return writer.to_bytes()


def late_header() -> bytes:
    """Junk before the header, as mail gateways leave it; offsets no longer fit."""
    return b"X-Junk: 1\r\n" * 20 + good()


def broken_xref() -> bytes:
    """The cross-reference table's place is wrong, and the objects can still be found."""
    head, _, tail = good().rpartition(b"startxref\n")
    return head + b"startxref\n7\n" + tail.split(b"\n", 1)[1]


def missing_page() -> bytes:
    """Three pages, the second of which is missing."""
    return mixed("dxd")


def broken_content() -> bytes:
    """Three pages; the content of the second cannot be unpacked."""
    writer = PdfWriter()
    writer.add_text_page(("Page 1", *PROSE))
    stream = writer.add_stream(b"\x78\x9c\xff\xff broken", b"/Filter /FlateDecode")
    page = b"<< /Type /Page /Parent %d 0 R /MediaBox [0 0 595 842] /Contents %d 0 R >>" % (writer.tree, stream)
    writer.add_page_object(writer.add(page))
    writer.add_text_page(("Page 3", *PROSE))
    return writer.to_bytes()


def cyclic_tree() -> bytes:
    """A page tree that is its own kid."""
    writer = PdfWriter()
    writer.add_text_page(PROSE)
    writer.add_page_object(writer.tree)
    return writer.to_bytes()


def deep_tree(depth: int = 2_000) -> bytes:
    """A page under thousands of nested page tree nodes."""
    writer = PdfWriter()
    page = writer.add(b"<< /Type /Page /MediaBox [0 0 595 842] >>")
    for _ in range(depth):
        page = writer.add(b"<< /Type /Pages /Kids [%d 0 R] /Count 1 >>" % page)
    writer.add_page_object(page)
    return writer.to_bytes()


def lying_count(count: int = 5_000_000) -> bytes:
    """One page, and a page tree that claims many."""
    return good(1).replace(b"/Count 1", b"/Count %d" % count)


def huge_page(side: float = 200_000) -> bytes:
    """A page 70 metres wide, with nothing but a path on it."""
    writer = PdfWriter()
    writer.add_page(b"0 0 m 1000 1000 l S", size=(side, side))
    return writer.to_bytes()


def ribbon() -> bytes:
    """A page 10 points wide and 100,000 points high."""
    writer = PdfWriter()
    writer.add_page(b"0 0 m 10 100000 l S", size=(10, 100_000))
    return writer.to_bytes()


def no_area() -> bytes:
    """A page whose box is a line, with a path on it."""
    writer = PdfWriter()
    writer.add_page(b"0 0 m 10 0 l S", size=(0, 842))
    return writer.to_bytes()


def image_bomb(side: int = 60_000) -> bytes:
    """A page with a picture that unpacks to gigabytes."""
    writer = PdfWriter()
    picture = writer.add_stream(
        b"\x78\x9c\x63\x00\x00\x00\x01\x00\x01",
        b"/Type /XObject /Subtype /Image /Width %d /Height %d /BitsPerComponent 8 /ColorSpace /DeviceRGB"
        b" /Filter /FlateDecode" % (side, side),
    )
    writer.add_page(b"q 595 0 0 842 0 0 cm /Im1 Do Q", resources=b"/XObject << /Im1 %d 0 R >>" % picture)
    return writer.to_bytes()


def hidden_layer() -> bytes:
    """A scan with another program's recognised text drawn invisibly over it."""
    writer = PdfWriter()
    lines = ("wrong words of an older recognition " * 3,) * 3
    writer.add_image_page(page_image(PROSE), overlay=text_content(lines, invisible=True))
    return writer.to_bytes()


def stamped_scan() -> bytes:
    """A scan whose only text is a stamp that a download portal put on it."""
    writer = PdfWriter()
    writer.add_image_page(page_image(PROSE), overlay=text_content(("Downloaded on 1 May",), font_size=8))
    return writer.to_bytes()


def dark_scan() -> bytes:
    """Two scans, the second one white on black."""
    writer = PdfWriter()
    writer.add_image_page(page_image(PROSE))
    writer.add_image_page(ImageOps.invert(page_image(PROSE)))
    return writer.to_bytes()


def form_scan() -> bytes:
    """A scan whose picture lies inside a form, as many scanners write it."""
    writer = PdfWriter()
    inner = PdfWriter()
    image = Image.new("L", (100, 140), 200)
    inner.add_image_page(image)
    picture = writer.add_stream(
        image.tobytes(),
        b"/Type /XObject /Subtype /Image /Width 100 /Height 140 /BitsPerComponent 8 /ColorSpace /DeviceGray",
    )
    form = writer.add_stream(
        b"q 595 0 0 842 0 0 cm /Im1 Do Q",
        b"/Type /XObject /Subtype /Form /BBox [0 0 595 842] /Resources << /XObject << /Im1 %d 0 R >> >>" % picture,
    )
    writer.add_page(b"/Fm1 Do\n" + text_content(("7",)), resources=b"/XObject << /Fm1 %d 0 R >>" % form)
    return writer.to_bytes()


def outlines() -> bytes:
    """Text drawn as paths: no character on the page."""
    writer = PdfWriter()
    writer.add_page(b"100 700 m 120 760 l 140 700 l S 108 720 m 132 720 l S")
    return writer.to_bytes()


def unmapped_font() -> bytes:
    """Text in a font that numbers its glyphs and names none."""
    writer = PdfWriter()
    descendant = writer.add(
        b"<< /Type /Font /Subtype /CIDFontType2 /BaseFont /Nameless /CIDSystemInfo << /Registry (Adobe)"
        b" /Ordering (Identity) /Supplement 0 >> >>"
    )
    font = writer.add(
        b"<< /Type /Font /Subtype /Type0 /BaseFont /Nameless /Encoding /Identity-H /DescendantFonts [%d 0 R] >>"
        % descendant
    )
    glyphs = b"".join(b"%04x" % (3 + 7 * n % 90) for n in range(200))
    stream = writer.add_stream(b"BT /F9 11 Tf 60 700 Td <%b> Tj ET" % glyphs)
    page = (
        b"<< /Type /Page /Parent %d 0 R /MediaBox [0 0 595 842] /Contents %d 0 R /Resources << /Font <<"
        b" /F9 %d 0 R >> >> >>" % (writer.tree, stream, font)
    )
    writer.add_page_object(writer.add(page))
    return writer.to_bytes()


def rotated(degrees: int = 90) -> bytes:
    writer = PdfWriter()
    writer.add_text_page(PROSE, rotate=degrees)
    return writer.to_bytes()


UNUSABLE: dict[str, tuple[Callable[[], bytes], str]] = {
    "encrypted.pdf": (encrypted, "encrypted"),
    "truncated.pdf": (truncated, "corrupt"),
    "header_only.pdf": (header_only, "corrupt"),
    "headless.pdf": (headless, "corrupt"),
    "orphaned_pages.pdf": (orphaned_pages, "corrupt"),
    "zero_bytes.pdf": (zero_bytes, "empty"),
    "white_space.pdf": (white_space, "empty"),
    "zero_pages.pdf": (zero_pages, "empty"),
    "html.pdf": (html, "unsupported"),
    "png.pdf": (png, "unsupported"),
    "prose_file.pdf": (prose_file, "unsupported"),
}
"""Files of which nothing can be read, and the kind of cause each must get."""
