"""What our Block types have in common."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from pydantic import ConfigDict

STRICT: Final = ConfigDict(extra="forbid", hide_input_in_errors=True)
"""Unknown fields are refused, since a misspelt secret would be stored in the clear; errors quote no input."""


def without_password(uri: str) -> str:
    """Refuse a URI that carries a password: it would show up wherever the URI does."""
    try:
        password = urlsplit(uri).password
    except ValueError:
        password = None
    if password:
        raise ValueError("the URI carries a password; put it into the storage options")
    return uri
