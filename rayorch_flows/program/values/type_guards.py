"""Type guards for values of any type: what ``isinstance`` alone would leave half unknown."""

from __future__ import annotations

from typing import Any, TypeGuard


def is_dict(value: object) -> TypeGuard[dict[Any, Any]]:
    return isinstance(value, dict)


def is_list(value: object) -> TypeGuard[list[Any] | tuple[Any, ...]]:
    """A list or a tuple."""
    return isinstance(value, (list, tuple))


def is_tuple(value: object) -> TypeGuard[tuple[Any, ...]]:
    return isinstance(value, tuple)


def is_set(value: object) -> TypeGuard[set[Any] | frozenset[Any]]:
    return isinstance(value, (set, frozenset))


def is_class(value: object) -> TypeGuard[type[Any]]:
    return isinstance(value, type)
