"""Writes small PDFs, the same bytes every time: for the sample corpus and for tests."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Final

from PIL import Image

A4: Final = (595.0, 842.0)
_PASSWORD_PAD: Final = bytes.fromhex("28bf4e5e4e758a4164004e56fffa01082e2e00b6d0683e802f0ca9fe6453697a")
_FILE_ID: Final = bytes(range(16))
_PERMISSIONS: Final = -4


class PdfWriter:
    """Collects pages, then gives the file's bytes.

    The page tree and the catalog are written last, so a file that is cut short has lost them. With
    ``user_password`` the file is encrypted (RC4, 40 bit: enough to need the password).
    """

    def __init__(
        self, info: Mapping[str, str] | None = None, *, version: str = "1.7", user_password: str | None = None
    ) -> None:
        self._objects: list[bytes] = []
        self._pages: list[int] = []
        self._info = dict(info or {})
        self._version = version
        self._key: bytes | None = None
        self._encrypt = b""
        if user_password is not None:
            self._key, self._encrypt = _encryption(user_password)
        self.tree = self.add(b"null")
        self.font = self.add(b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>")

    def add(self, body: bytes) -> int:
        """Add an object; returns its number."""
        self._objects.append(body)
        return len(self._objects)

    def add_stream(self, data: bytes, entries: bytes = b"") -> int:
        """Add a stream object with these further dictionary entries."""
        data = self._sealed(len(self._objects) + 1, data)
        return self.add(b"<< %b /Length %d >>\nstream\n%b\nendstream" % (entries, len(data), data))

    def add_page(
        self, content: bytes, *, size: tuple[float, float] = A4, resources: bytes = b"", rotate: int = 0
    ) -> int:
        """Add a page that draws ``content``; Helvetica is its font ``/F1``."""
        stream = self.add_stream(content)
        page = self.add(
            b"<< /Type /Page /Parent %d 0 R /MediaBox [0 0 %g %g] /Rotate %d /Contents %d 0 R"
            b" /Resources << /Font << /F1 %d 0 R >> %b >> >>" % (self.tree, *size, rotate, stream, self.font, resources)
        )
        return self.add_page_object(page)

    def add_page_object(self, number: int) -> int:
        """Put an object that exists, or is missing, into the page tree."""
        self._pages.append(number)
        return number

    def add_text_page(
        self, lines: Sequence[str], *, font_size: float = 11, size: tuple[float, float] = A4, rotate: int = 0
    ) -> int:
        """Add a page with lines of text from the top down."""
        return self.add_page(text_content(lines, font_size=font_size, size=size), size=size, rotate=rotate)

    def add_image_page(
        self,
        image: Image.Image,
        *,
        size: tuple[float, float] = A4,
        quality: int = 75,
        overlay: bytes = b"",
    ) -> int:
        """Add a page that a JPEG of ``image`` covers; ``overlay`` is drawn on top of it."""
        buffer = BytesIO()
        image.save(buffer, "JPEG", quality=quality)
        space = b"/DeviceGray" if image.mode == "L" else b"/DeviceRGB"
        picture = self.add_stream(
            buffer.getvalue(),
            b"/Type /XObject /Subtype /Image /Width %d /Height %d /BitsPerComponent 8 /ColorSpace %b"
            b" /Filter /DCTDecode" % (*image.size, space),
        )
        content = b"q %g 0 0 %g 0 0 cm /Im1 Do Q\n%b" % (*size, overlay)
        return self.add_page(content, size=size, resources=b"/XObject << /Im1 %d 0 R >>" % picture)

    def to_bytes(self) -> bytes:
        """The finished file."""
        kids = b" ".join(b"%d 0 R" % page for page in self._pages)
        objects = list(self._objects)
        tree = b"<< /Type /Pages /Kids [%b] /Count %d >>" % (kids, len(self._pages))
        objects.append(b"<< /Type /Catalog /Pages %d 0 R >>" % self.tree)
        root = len(objects)
        trailer = b"/Root %d 0 R" % root
        if self._info:
            number = len(objects) + 1
            entries = b" ".join(
                b"/%b <%b>" % (key.encode(), self._sealed(number, _text(value)).hex().encode())
                for key, value in self._info.items()
            )
            objects.append(b"<< %b >>" % entries)
            trailer += b" /Info %d 0 R" % number
        if self._encrypt:
            objects.append(self._encrypt)
            trailer += b" /Encrypt %d 0 R /ID [<%b> <%b>]" % (len(objects), *[_FILE_ID.hex().encode()] * 2)
        out = bytearray(b"%%PDF-%b\n%%\xe2\xe3\xcf\xd3\n" % self._version.encode())
        offsets = [0] * len(objects)
        order = [n for n in range(1, len(objects) + 1) if n != self.tree]
        order.insert(order.index(root), self.tree)
        for number in order:
            offsets[number - 1] = len(out)
            body = tree if number == self.tree else objects[number - 1]
            out += b"%d 0 obj\n%b\nendobj\n" % (number, body)
        start = len(out)
        out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
        for offset in offsets:
            out += b"%010d 00000 n \n" % offset
        out += b"trailer\n<< /Size %d %b >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, trailer, start)
        return bytes(out)

    def _sealed(self, number: int, data: bytes) -> bytes:
        if self._key is None:
            return data
        key = hashlib.md5(self._key + number.to_bytes(3, "little") + b"\0\0", usedforsecurity=False).digest()
        return _rc4(key[: len(self._key) + 5], data)


def text_content(
    lines: Sequence[str],
    *,
    font_size: float = 11,
    size: tuple[float, float] = A4,
    margin: float = 60,
    invisible: bool = False,
) -> bytes:
    """A content stream that writes lines in the font ``/F1``."""
    parts = [
        b"BT %b /F1 %g Tf %g TL %g %g Td"
        % (b"3 Tr" if invisible else b"0 Tr", font_size, font_size * 1.4, margin, size[1] - margin)
    ]
    for line in lines:
        text = line.encode("cp1252", "replace")
        for char in (b"\\", b"(", b")"):
            text = text.replace(char, b"\\" + char)
        parts.append(b"(%b) Tj T*" % text)
    parts.append(b"ET")
    return b"\n".join(parts)


def _text(value: str) -> bytes:
    return b"\xfe\xff" + value.encode("utf-16-be", "surrogatepass")


def _encryption(user_password: str) -> tuple[bytes, bytes]:
    """The file key, and the encryption dictionary (standard handler, revision 2, owner password = user's)."""
    padded = (user_password.encode("latin-1") + _PASSWORD_PAD)[:32]
    owner = _rc4(hashlib.md5(padded, usedforsecurity=False).digest()[:5], padded)
    permissions = (_PERMISSIONS & 0xFFFFFFFF).to_bytes(4, "little")
    seed = padded + owner + permissions + _FILE_ID
    key = hashlib.md5(seed, usedforsecurity=False).digest()[:5]
    user = _rc4(key, _PASSWORD_PAD)
    body = b"<< /Filter /Standard /V 1 /R 2 /O <%b> /U <%b> /P %d >>" % (
        owner.hex().encode(),
        user.hex().encode(),
        _PERMISSIONS,
    )
    return key, body


def _rc4(key: bytes, data: bytes) -> bytes:
    state = list(range(256))
    j = 0
    for i in range(256):
        j = (j + state[i] + key[i % len(key)]) & 255
        state[i], state[j] = state[j], state[i]
    out = bytearray()
    i = j = 0
    for byte in data:
        i = (i + 1) & 255
        j = (j + state[i]) & 255
        state[i], state[j] = state[j], state[i]
        out.append(byte ^ state[(state[i] + state[j]) & 255])
    return bytes(out)
