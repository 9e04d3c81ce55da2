"""Keeps the values of storage options out of messages: libraries like to quote what they were given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, cast
from urllib.parse import quote, urlsplit

HIDDEN: Final = "***"
_SHORTEST: Final = 4
_PLAIN_WORDS: Final = frozenset({"true", "false", "none", "null", "auto", "anon"})


def redacted(text: str, secret: object) -> str:
    """The text without any string that ``secret`` holds, at any depth; an address without credentials may stay."""
    for value in sorted(set(_strings(secret)), key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    return text


def as_cause(error: BaseException, secret: object) -> BaseException | None:
    """For ``raise ... from``: an error that may quote a secret is no cause: tracebacks print causes."""
    return None if secret else error


def _strings(secret: object) -> Iterator[str]:
    if isinstance(secret, bytes):
        secret = secret.decode(errors="ignore")
    if isinstance(secret, str):
        if len(secret) >= _SHORTEST and secret.lower() not in _PLAIN_WORDS and not _is_plain_address(secret):
            yield from {secret, quote(secret, safe=""), repr(secret)[1:-1]}
            yield from (word for word in secret.split() if word != secret and len(word) >= 2 * _SHORTEST)
    elif isinstance(secret, Mapping):
        for value in cast("Mapping[Any, Any]", secret).values():
            yield from _strings(value)
    elif isinstance(secret, (list, tuple, set, frozenset)):
        for value in cast("list[Any]", secret):
            yield from _strings(value)


def _is_plain_address(text: str) -> bool:
    if not text.startswith(("http://", "https://")):
        return False
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return "@" not in parts.netloc and not parts.query
