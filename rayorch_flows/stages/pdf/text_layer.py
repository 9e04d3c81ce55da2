"""Is a page's own text layer good enough, or must the page be recognised from its picture?"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from rayorch_flows.stages.pdf.pdfium import CharSample, Survey


class Layer(StrEnum):
    """What a page's text layer is."""

    GOOD = "good"  # use it
    BLANK = "blank"  # nothing is drawn on the page: its text is empty, and that is right
    NO_TEXT = "no_text"  # something is drawn, and no character of it is text
    INVISIBLE = "invisible"  # most characters are drawn invisibly: another program's recognition over a scan
    SPARSE = "sparse"  # a picture covers the page, and a stamp or a page number is all its text
    UNMAPPED = "unmapped"  # the fonts do not say which characters their glyphs are
    GARBAGE = "garbage"  # the characters are not those of any writing

    @property
    def needs_ocr(self) -> bool:
        return self not in (Layer.GOOD, Layer.BLANK)


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Where ``judge`` draws its lines; shares are of the characters that are not white space."""

    invisible: float = 0.5
    sparse_cover: float = 0.5
    sparse_chars: int = 100
    unmapped: float = 0.3
    natural: float = 0.8
    garbage: float = 0.15
    vowelless: float = 0.6


_WORD: Final = re.compile(r"[A-Za-z]{4,}")
_VOWEL: Final = re.compile(r"[AEIOUYaeiouy]")
_MIN_WORDS: Final = 20
_PUNCTUATION: Final = "\"'.,:;!?()[]{}<>*+=/%$&#\u2013\u2014\u2018\u2019\u201c\u201d\u2022-"
_NUMBER: Final = re.compile(r"[\d.,:/%+-]+[A-Za-z]{0,2}")
_LATIN: Final = re.compile(
    r"(?:[A-Z\u00c0-\u024f]?[a-z\u00c0-\u024f]+|[A-Z\u00c0-\u024f]+)(?:[-'\u2019][A-Za-z\u00c0-\u024f]+)*"
)


def _plain(text: str) -> str:
    return unicodedata.normalize("NFD", text)


def judge(text: str, sample: CharSample, survey: Survey, limits: Thresholds | None = None) -> Layer:
    """Decide about one page from its text and what lies on it; the first rule that applies wins."""
    lines = limits or Thresholds()
    count = sum(not char.isspace() for char in text)
    if count == 0:
        return Layer.NO_TEXT if survey.objects else Layer.BLANK
    if sample.invisible > lines.invisible:
        return Layer.INVISIBLE
    if survey.image_cover >= lines.sparse_cover and count < lines.sparse_chars:
        return Layer.SPARSE
    if sample.unmapped > lines.unmapped and natural_share(text) < lines.natural:
        return Layer.UNMAPPED
    if garbage_share(text) > lines.garbage or vowelless_share(text) > lines.vowelless:
        return Layer.GARBAGE
    return Layer.GOOD


def garbage_share(text: str) -> float:
    """The share of characters that stand for none: replacement, control, private use, unassigned."""
    count = bad = 0
    for char in text:
        if char.isspace():
            continue
        count += 1
        if char >= "\x7f" or char < " ":
            bad += char == "\ufffd" or unicodedata.category(char) in ("Cc", "Co", "Cn", "Cs")
    return bad / count if count else 0.0


def natural_share(text: str) -> float:
    """The share of tokens that look like Latin words or numbers: what glyph numbers taken for text do not."""
    tokens = [token.strip(_PUNCTUATION) for token in text.split()]
    tokens = [token for token in tokens if token]
    if not tokens:
        return 0.0
    natural = sum(bool(_NUMBER.fullmatch(t) or (_LATIN.fullmatch(t) and _VOWEL.search(_plain(t)))) for t in tokens)
    return natural / len(tokens)


def vowelless_share(text: str) -> float:
    """The share of longer Latin words without a vowel: glyph numbers that only look like letters. 0 if few words."""
    words = _WORD.findall(text)
    if len(words) < _MIN_WORDS:
        return 0.0
    return sum(_VOWEL.search(word) is None for word in words) / len(words)


_HYPHEN: Final = re.compile("[\x02\ufffe](?=\\s|$)")
_TRAILING: Final = re.compile(r"[ \t\f\v]+$", re.MULTILINE)
_GAP: Final = re.compile(r"\n{3,}")


def clean(text: str) -> str:
    """Text as it goes into a record: valid Unicode, ``\\n`` lines, no control characters, no trailing blanks."""
    text = _HYPHEN.sub("-", text.replace("\r\n", "\n").replace("\r", "\n"))
    text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if not text.isprintable():
        text = "".join(c for c in text if c in "\n\t" or (unicodedata.category(c) not in ("Cc", "Cn", "Cs")))
    return _GAP.sub("\n\n", _TRAILING.sub("", text)).strip("\n")
