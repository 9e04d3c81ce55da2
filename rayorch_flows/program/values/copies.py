"""Copies of what the user passes, so that nobody changes a Plan through a value that he kept."""

from __future__ import annotations

import copy
from typing import Any, cast

from rayorch_flows.errors import CompileError
from rayorch_flows.program.values.type_guards import is_dict, is_list, is_set


def own(value: Any) -> Any:
    """The same value, with containers and objects of our own; functions, classes and modules are code, and stay."""
    return _own(value, {})


def _own(value: Any, memo: dict[int, Any]) -> Any:
    if id(value) in memo:
        return memo[id(value)]
    kind = cast("type[Any]", type(value))
    if is_dict(value) and kind is dict:
        pairs: dict[Any, Any] = {}
        memo[id(value)] = pairs
        pairs.update((_own(k, memo), _own(v, memo)) for k, v in value.items())
        return pairs
    if is_list(value) and kind is list:
        items: list[Any] = []
        memo[id(value)] = items
        items.extend(_own(v, memo) for v in value)
        return items
    if is_list(value) and kind is tuple:
        return tuple(_own(v, memo) for v in value)
    if is_set(value) and kind in (set, frozenset):
        return cast("Any", kind)(_own(v, memo) for v in value)
    if kind.__module__.partition(".")[0] == "ray":
        return value  # handles and references of Ray: a copy would count as another owner
    try:
        return copy.deepcopy(value, memo)
    except CompileError:
        raise
    except Exception:
        return value  # the compiler tells what cannot be pickled
