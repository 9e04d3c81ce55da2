"""A small corpus made in code: born-digital and scanned PDFs, a long one, and two that cannot be opened."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from rayorch_flows.stages.samples.pdf_writer import PdfWriter, text_content

TRUTH: Final = "truth.json"
_SCAN_DPI: Final = 150
_LINES: Final = 38
_WIDTH: Final = 78

_SUBJECTS: Final = (
    "The survey team", "A careful editor", "The night train", "Our second instrument", "The harbour office",
    "Every new volunteer", "The older map", "A small committee", "The water mill", "The visiting engineer",
    "Nobody in the village", "The printed catalogue",
)  # fmt: skip
_VERBS: Final = (
    "recorded", "compared", "carried", "repaired", "described", "postponed", "measured", "returned", "explained",
    "counted", "delivered", "examined",
)  # fmt: skip
_OBJECTS: Final = (
    "the results of the spring tests", "a box of glass plates", "three kinds of timber", "the missing ledger pages",
    "the depth of the channel", "an unusual pattern of lights", "the first draft of the treaty",
    "a list of forty names", "the cost of the new bridge", "two samples of river clay",
    "the schedule for the coming year", "a letter from the northern station",
)  # fmt: skip
_ENDS: Final = (
    "before the end of the month", "without any further delay", "in the presence of two witnesses",
    "as the regulations require", "while the road was still closed", "for the third time since January",
    "although the weather had changed", "and sent a copy to the archive", "at a price of 125 crowns",
    "with the help of the local school", "after a long discussion", "and kept the original in a safe",
)  # fmt: skip


def make_sample(folder: str | Path) -> Path:
    """Write the sample corpus into ``folder`` and return it. ``truth.json`` holds the text of every page by file.

    Eleven PDFs. Nine can be read: 51 pages, 9 of them scanned. ``encrypted.pdf`` and ``truncated.pdf`` cannot.
    """
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    truth: dict[str, list[str]] = {}
    files: dict[str, bytes] = {}
    for seed, (name, kinds, title) in enumerate(_DOCUMENTS):
        pages = [_page_lines(seed * 1000 + number) for number in range(len(kinds))]
        files[name] = _document(title, kinds, pages, seed)
        truth[name] = ["\n".join(lines) for lines in pages]
    whole = _document("Cut short", "ddd", [_page_lines(9000 + number) for number in range(3)], 90)
    files["truncated.pdf"] = whole[: len(whole) // 2]
    locked = PdfWriter({"Title": "Locked"}, user_password="sesame")
    locked.add_text_page(_page_lines(9100))
    files["encrypted.pdf"] = locked.to_bytes()
    for name, data in files.items():
        (target / name).write_bytes(data)
    (target / TRUTH).write_text(json.dumps(truth, indent=1) + "\n", encoding="utf-8")
    return target


_DOCUMENTS: Final = (  # name, one letter a page (d: born digital, s: scanned), title
    ("handbook.pdf", "d" * 30, "Handbook of the Survey"),
    ("report.pdf", "dddd", "Quarterly Report"),
    ("letter.pdf", "d", "A Letter"),
    ("notice.pdf", "d", "Public Notice"),
    ("minutes.pdf", "ddd", "Minutes of the Committee"),
    ("scan-ledger.pdf", "sss", "Ledger"),
    ("scan-memo.pdf", "s", "Memorandum"),
    ("scan-diary.pdf", "ss", "Diary"),
    ("mixed-dossier.pdf", "dsdssd", "Dossier"),
)


def page_image(lines: Sequence[str], seed: int = 0, *, dpi: int = _SCAN_DPI) -> Image.Image:
    """Lines of text as a scanner would see them: grey paper, noise, a slight slant."""
    width, height = round(8.27 * dpi), round(11.69 * dpi)
    image = Image.new("L", (width, height), 246)
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(size=dpi * 10.5 / 72)
    step = dpi * 17 / 72
    for number, line in enumerate(lines):
        draw.text((width * 0.09, height * 0.07 + number * step), line, fill=28, font=font)
    slant = random.Random(seed).uniform(-0.4, 0.4)
    image = image.rotate(slant, resample=Image.Resampling.BICUBIC, fillcolor=246)
    noise = np.random.default_rng(seed).normal(0, 9, (height, width))
    return Image.fromarray(np.clip(np.asarray(image) + noise, 0, 255).astype(np.uint8))


def _document(title: str, kinds: str, pages: Sequence[Sequence[str]], seed: int) -> bytes:
    writer = PdfWriter({"Title": title, "Author": "rayorch-flows", "Producer": "rayorch-flows sample"})
    for number, (kind, lines) in enumerate(zip(kinds, pages, strict=True)):
        if kind == "s":
            writer.add_image_page(page_image(lines, seed * 1000 + number))
        else:
            writer.add_page(text_content(lines))
    return writer.to_bytes()


def _page_lines(seed: int) -> list[str]:
    """Paragraphs of made-up sentences, wrapped to lines; the same for the same seed."""
    draw = random.Random(seed)
    lines = [f"Section {seed % 1000 + 1}", ""]
    while len(lines) < _LINES:
        line = ""
        for _ in range(draw.randint(3, 5)):
            parts = (draw.choice(words) for words in (_SUBJECTS, _VERBS, _OBJECTS, _ENDS))
            for word in (" ".join(parts) + ".").split():
                if line and len(line) + len(word) >= _WIDTH:
                    lines.append(line)
                    line = ""
                line = f"{line} {word}" if line else word
        lines += [line, ""]
    return lines[:_LINES]
