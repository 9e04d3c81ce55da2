"""The actor: decode the columns, call the Function, check what it returned, encode it into blocks."""

from __future__ import annotations

import functools
import inspect
import os
import pickle
import time
import traceback
from collections.abc import Sequence
from typing import Any, Final

import cloudpickle

from rayorch_flows.lineage.protocol import Column
from rayorch_flows.program.outcomes import CauseKind
from rayorch_flows.program.plan import NO_ID
from rayorch_flows.runtime.payloads.codec import (
    INLINE_BATCH_BYTES,
    INLINE_BLOCK_BYTES,
    BadRow,
    Payload,
    Row,
    cut,
    decode_column,
    dumps_any,
    encode_rows,
    encode_whole,
    open_block,
    pack_rows,
)
from rayorch_flows.runtime.payloads.contract import (
    ContractError,
    cause_text,
    check_aligned,
    find_failures,
    group_lengths,
    mask_bytes,
    split_outputs,
)
from rayorch_flows.runtime.payloads.wire import (
    ERROR,
    OK,
    CallSpec,
    Piece,
    Raised,
    RawFailure,
    RawOutput,
    unpack_request,
)

_OWN_FRAMES: Final = os.path.dirname(os.path.abspath(__file__))
_TRACEBACK_CHARS: Final = 20_000


class Worker:
    """One replica of a module. Made a Ray actor by ``pool``; plain enough to be tested without Ray."""

    def __init__(self, calls: tuple[CallSpec, ...]) -> None:
        self._calls = {call.id: call for call in calls}
        self._run: Any = None

    def place(self) -> tuple[int, str]:
        """Answered as soon as the actor has its resources: (pid, host name)."""
        return os.getpid(), os.uname().nodename

    def load(self, blob: bytes) -> Raised | None:
        """Construct the Function; what went wrong, if anything."""
        try:
            function, args, kwargs = cloudpickle.loads(blob)
            if inspect.isclass(function):
                target = function(*args, **kwargs)
            elif args or kwargs:
                target = functools.partial(function, *args, **kwargs)
            else:
                target = function
            run = getattr(target, "run", target)
            if not callable(run):
                raise ContractError("the Function has neither a run method nor is it callable")
            self._run = run
        except BaseException as error:
            return describe(error)
        return None

    def run(self, request: bytes, *objects: Any) -> Any:
        """Dispatch batches, one after the other: the reply, followed by as many objects as the request has slots."""
        batches, blocks, slots = unpack_request(request)
        remaining = iter(objects)
        sent = {block: next(remaining) if data is None else data for block, data in blocks}
        filled: list[Payload | None] = [None] * slots
        reply = pickle.dumps([self._batch(*batch, sent, filled) for batch in batches])
        return (reply, *filled) if slots else reply

    def _batch(
        self, call_id: int, size: int, columns: list[Column], sent: dict[int, Payload], filled: list[Payload | None]
    ) -> bytes:
        started = time.time()
        try:
            opened = _Opened(sent)
            arguments = [decode_column(column, opened, size) for column in columns]
            call = self._calls[call_id]
            result = self._run(*arguments[: call.positional], **_named(call, arguments))
            failures, outputs = encode_result(call, result, size, filled)
            return pickle.dumps((OK, failures, outputs, started, time.time()), 5)
        except BaseException as error:
            filled[:] = [None] * len(filled)
            return pickle.dumps((ERROR, describe(error), started, time.time()), 5)


class _Opened(dict[int, Any]):
    """The blocks of one batch by id, opened when it first reads them: one that cannot be opened fails its readers only,
    and what a Function does to its arguments no other batch sees."""

    def __init__(self, sent: dict[int, Payload]) -> None:
        super().__init__()
        self._sent = sent

    def __missing__(self, block: int) -> Any:
        opened = self[block] = open_block(self._sent[block])
        return opened


def _named(call: CallSpec, arguments: list[Any]) -> dict[str, Any]:
    """The arguments that go by keyword, static ones included."""
    named = dict(call.kwargs)
    named.update(zip(call.names[call.positional :], arguments[call.positional :], strict=True))
    return named


def encode_result(
    call: CallSpec, result: Any, size: int, filled: list[Payload | None]
) -> tuple[list[RawFailure], list[RawOutput]]:
    """Check a Function's result and put its payloads inline or into the slots of ``filled``."""
    columns = split_outputs(call, result, size)
    failures = find_failures(columns)
    if call.plain and not failures and not filled:
        return failures, [RawOutput(_inline_named(call.outputs[0].name, list(columns[0])), [], None, None, None)]
    if failures:
        lost = {failure.row for failure in failures}
        columns = [[v for row, v in enumerate(column) if row not in lost] for column in columns]
    lengths: dict[int, list[int]] = {}
    flat: dict[int, list[Any]] = {}
    streams: list[list[Any]] = []
    names: list[str] = []
    for index, output in enumerate(call.outputs):
        rows = list(columns[index])
        if output.value:
            streams.append(rows)
            names.append(output.name)
        if output.group != NO_ID:
            lengths[index] = group_lengths(f"output {output.name!r}", rows)
            flat[index] = [element for value in rows for element in value]
            if output.elements:
                streams.append(flat[index])
                names.append(output.name)
    check_aligned(call, lengths)
    masks = [mask_bytes(f"output {o.name!r}", columns[i]) if o.mask else None for i, o in enumerate(call.outputs)]
    element_masks = [
        mask_bytes(f"an element of output {o.name!r}", flat[i]) if o.element_mask else None
        for i, o in enumerate(call.outputs)
    ]
    pieces = iter(_encode_streams(streams, names, filled))
    outputs: list[RawOutput] = []
    for index, output in enumerate(call.outputs):
        values = next(pieces) if output.value else []
        elements = next(pieces) if output.elements else []
        outputs.append(RawOutput(values, elements, lengths.get(index), masks[index], element_masks[index]))
    return failures, outputs


def _encode_streams(
    streams: Sequence[list[Any]], names: Sequence[str], filled: list[Payload | None]
) -> list[list[Piece]]:
    """Each stream of payload rows as pieces; with slots to fill, large streams share them by their bytes."""
    encoded: list[list[Piece]] = [[] for _ in streams]
    index = 0
    try:
        if not filled:
            for index, rows in enumerate(streams):
                encoded[index] = _inline(rows)
            return encoded
        objects: list[tuple[list[Row], list[int]]] = []
        for rows in streams:
            index = len(objects)
            objects.append(encode_rows(rows))
        totals = [sum(sizes) for _, sizes in objects]
        everything_small = sum(totals) <= INLINE_BATCH_BYTES
        for index, rows in enumerate(streams):
            if everything_small or totals[index] <= INLINE_BLOCK_BYTES:
                encoded[index] = _inline(rows)
                totals[index] = 0
    except BadRow as error:
        raise _bad(names[index], error) from None
    large = sum(totals)
    # The driver gives at least one slot for each stream, or none at all.
    spare = len(filled) - sum(1 for total in totals if total)
    slot = 0
    for index, (rows, sizes) in enumerate(objects):
        if not totals[index]:
            continue
        for start, end in cut(sizes, 1 + int(spare * totals[index] / large)):
            filled[slot] = pack_rows(rows[start:end])
            encoded[index].append((end - start, sum(sizes[start:end]), slot))
            slot += 1
    return encoded


def _inline_named(name: str, rows: list[Any]) -> list[Piece]:
    try:
        return _inline(rows)
    except BadRow as error:
        raise _bad(name, error) from None


def _bad(name: str, error: BadRow) -> ContractError:
    return ContractError(f"output {name!r} holds a value that {error.reason}")


def _inline(rows: list[Any]) -> list[Piece]:
    if not rows:
        return []
    return [(count, len(data), data) for count, data in encode_whole(rows)]


def describe(error: BaseException) -> Raised:
    """An exception as text, and as itself where it survives pickling."""
    kind = CauseKind.CONTRACT if isinstance(error, ContractError) else CauseKind.FUNCTION_ERROR
    message = str(error) if isinstance(error, ContractError) else cause_text(error)
    try:
        full = traceback.TracebackException.from_exception(error)
        own = [f for f in full.stack if os.path.dirname(os.path.abspath(f.filename)) != _OWN_FRAMES]
        full.stack = traceback.StackSummary.from_list(own)
        text = "".join(full.format()) if own else ""
    except Exception:
        text = ""
    pickled = b""
    try:
        pickled = dumps_any(error.with_traceback(None))
        pickle.loads(pickled)
    except BaseException:
        pickled = b""
    return Raised(kind, message, text[-_TRACEBACK_CHARS:], pickled)
