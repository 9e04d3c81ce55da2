"""What a Function has to return, checked where it returned it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from rayorch_flows.program.outcomes import RETRYABLE_KINDS, CauseKind, GroupFailure, RecordFailure
from rayorch_flows.program.plan import NO_ID
from rayorch_flows.runtime.payloads.wire import CallSpec, RawFailure

_MESSAGE_CHARS: Final = 4_000


class ContractError(Exception):
    """A Function returned something that its Call cannot use."""


def cause_text(cause: Any) -> str:
    """The text of whatever the user gave as a cause."""
    try:
        if isinstance(cause, BaseException):
            text = f"{type(cause).__name__}: {cause}"
        else:
            text = "".join([str(cause)])  # exactly a str: what a subclass of it carries may not be picklable
    except Exception as error:
        text = f"a {type(cause).__name__} whose text cannot be made ({type(error).__name__})"
    return text if len(text) <= _MESSAGE_CHARS else text[:_MESSAGE_CHARS] + "..."


def split_outputs(call: CallSpec, result: Any, size: int) -> list[list[Any] | tuple[Any, ...]]:
    """The result of ``run`` as one column for each output, each with one row for each input row."""
    wanted = len(call.outputs)
    if wanted == 1:
        columns: Any = (result,)
    else:
        if not isinstance(result, (list, tuple)):
            raise ContractError(
                f"expected {wanted} outputs as a tuple of lists, got {_a(result)}; return a tuple of {wanted} lists"
            )
        if len(result) != wanted:  # pyright: ignore[reportUnknownArgumentType]
            raise ContractError(
                f"expected {wanted} outputs, got {len(result)}; "  # pyright: ignore[reportUnknownArgumentType]
                f"return a tuple of {wanted} lists, or change .returns({wanted})"
            )
        columns = result  # pyright: ignore[reportUnknownVariableType]
    checked: list[list[Any] | tuple[Any, ...]] = []
    for index, column in enumerate(columns):
        label = "the result" if wanted == 1 else f"output {index}"
        if not isinstance(column, (list, tuple)):
            raise ContractError(
                f"{label} has to be a list with one value for each of the {size} rows, got {_a(column)}"
            )
        if len(column) != size:  # pyright: ignore[reportUnknownArgumentType]
            raise ContractError(
                f"{label} has {len(column)} rows for a batch of {size}; "  # pyright: ignore[reportUnknownArgumentType]
                "return exactly one value for each row, in order"
            )
        checked.append(column)  # pyright: ignore[reportUnknownArgumentType]
    return checked


def find_failures(columns: list[list[Any] | tuple[Any, ...]]) -> list[RawFailure]:
    """Rows with a RecordFailure or GroupFailure in any output; the first output that has one gives the cause,
    and it is a GroupFailure if any of them is."""
    found: dict[int, RawFailure] = {}
    for column in columns:
        if not any(issubclass(kind, (RecordFailure, GroupFailure)) for kind in set(map(type, column))):
            continue
        for row, value in enumerate(column):
            if isinstance(value, (RecordFailure, GroupFailure)):
                group = isinstance(value, GroupFailure)
                known = found.get(row)
                if known is None:
                    kind = CauseKind(value.kind)
                    retryable = value.retryable or kind in RETRYABLE_KINDS
                    found[row] = RawFailure(row, kind, cause_text(value.cause), retryable, group)
                elif group and not known.group:
                    found[row] = known._replace(group=True)
    return [found[row] for row in sorted(found)]


def mask_bytes(name: str, rows: Sequence[Any]) -> bytes:
    """Mask values as one byte a row."""
    try:
        return bytes([_BOOLS[value] if type(value) is bool else _other_bool(value) for value in rows])
    except TypeError as error:
        raise ContractError(f"{name} is used as a mask, {error}") from None


_BOOLS: Final = {True: 1, False: 0}


def _other_bool(value: Any) -> int:
    kind = type(value)
    if kind.__module__ == "numpy" and kind.__name__ in ("bool", "bool_"):
        return int(value)
    raise TypeError(f"so each row has to be True or False, got {_a(value)}")


def group_lengths(name: str, rows: Sequence[Any]) -> list[int]:
    """How many children each present row expands to."""
    for value in rows:
        if not isinstance(value, (list, tuple)):
            raise ContractError(f"{name} is expanded, so each row has to be a list, got {_a(value)}")
    return [len(value) for value in rows]


def check_aligned(call: CallSpec, lengths: dict[int, list[int]]) -> None:
    """Outputs that are expanded together need lists of equal lengths, row by row."""
    by_domain: dict[int, int] = {}
    for index, output in enumerate(call.outputs):
        if output.group == NO_ID:
            continue
        first = by_domain.setdefault(output.group, index)
        if lengths[first] != lengths[index]:
            row, (left, right) = next(
                (row, pair)
                for row, pair in enumerate(zip(lengths[first], lengths[index], strict=True))
                if pair[0] != pair[1]
            )
            raise ContractError(
                f"outputs {call.outputs[first].name!r} and {output.name!r} are expanded together, but present row "
                f"{row} has {left} and {right} elements; return lists of equal lengths"
            )


def _a(value: Any) -> str:
    text = repr(type(value).__name__)
    return f"a value of type {text}" if value is not None else "None"
