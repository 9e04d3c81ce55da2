"""Where payloads are while somebody needs them: block ids to inline bytes or object references."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import ray

from rayorch_flows.lineage.protocol import Block, OutputReport, RowFailure, SourceColumn
from rayorch_flows.program.outcomes import Cause, CauseKind
from rayorch_flows.program.plan import NO_ID, Plan
from rayorch_flows.runtime.payloads.codec import (
    INLINE_BATCH_BYTES,
    BadRow,
    bad_rows,
    cut,
    dumps_by_value,
    encode_rows,
    encode_whole,
    pack_rows,
)
from rayorch_flows.runtime.payloads.contract import ContractError, group_lengths, mask_bytes
from rayorch_flows.runtime.payloads.wire import OutputSpec, output_spec

Stored = Any
"""``bytes`` or a ``ray.ObjectRef``."""

OBJECT_BYTES: Final = 4 * 1024 * 1024
"""Large payloads lie in objects of about this size."""
_MAX_SLOTS: Final = 16
_INLINE_MAX: Final = 90_000  # Ray moves arguments beyond 100 kB through the object store
_SAMPLE: Final = 8


class BlockTable:
    """Payloads of live blocks. Used by the engine's thread only."""

    def __init__(self) -> None:
        self._stored: dict[int, Stored] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._stored)

    def add(self, payload: Stored, rows: int, nbytes: int) -> Block:
        """A new block for ``payload``: whole bytes, or the reference of an object in the store."""
        if type(payload) is bytes and nbytes > _INLINE_MAX:
            payload = ray.put(payload)
        block = self._next
        self._next = block + 1
        self._stored[block] = payload
        return Block(block, rows, nbytes)

    def subset(self, blocks: Iterable[int]) -> dict[int, Stored]:
        """The payloads of ``blocks``, kept alive by whoever holds the answer."""
        stored = self._stored
        return {block: stored[block] for block in blocks if block >= 0}

    def release(self, blocks: Iterable[int]) -> None:
        pop = self._stored.pop
        for block in blocks:
            pop(block, None)

    def store_rows(self, rows: list[Any]) -> tuple[Block, ...]:
        """Encode values of the driver: small ones inline, large ones as objects. Raises BadRow."""
        if not rows:
            return ()
        _, sample = encode_rows(rows[:_SAMPLE], dumps_by_value)
        if sum(sample) / len(sample) * min(len(rows), 64) <= INLINE_BATCH_BYTES:
            whole = encode_whole(rows, dumps_by_value)
            return tuple(self.add(data, count, len(data)) for count, data in whole)
        encoded, sizes = encode_rows(rows, dumps_by_value)
        pieces = -(-sum(sizes) // OBJECT_BYTES)
        return tuple(
            self.add(ray.put(pack_rows(encoded[start:end])), end - start, sum(sizes[start:end]))
            for start, end in cut(sizes, pieces)
        )

    def store_sources(self, plan: Plan, columns: Sequence[Sequence[Any]]) -> list[SourceColumn]:
        """The source columns of a microbatch as the machine wants them."""
        return [
            self._source(output_spec(plan, port), column) for port, column in zip(plan.sources, columns, strict=True)
        ]

    def _source(self, spec: OutputSpec, column: Sequence[Any]) -> SourceColumn:
        label = f"source {spec.name!r}"
        bad: dict[int, str] = {}
        if spec.group != NO_ID or spec.mask:
            for row, value in enumerate(column):
                try:
                    _check_source(spec, label, value)
                except ContractError as error:
                    bad[row] = str(error)
        try:
            return self._present(spec, label, column, bad)
        except BadRow:
            # Rare: only now each value is looked at by itself.
            for row, reason in bad_rows(column, dumps_by_value).items():
                bad.setdefault(row, f"{label}: the value {reason}")
        try:
            return self._present(spec, label, column, bad)
        except BadRow as error:
            raise ContractError(f"{label}: a value {error.reason}") from None

    def _present(self, spec: OutputSpec, label: str, column: Sequence[Any], bad: dict[int, str]) -> SourceColumn:
        present = [value for row, value in enumerate(column) if row not in bad] if bad else list(column)
        values = self.store_rows(present) if spec.value else ()
        lengths, flat = None, list[Any]()
        if spec.group != NO_ID:
            lengths = [len(value) for value in present]
            flat = [element for value in present for element in value]
        report = OutputReport(
            values,
            self._elements(flat, values) if spec.elements else (),
            lengths,
            mask_bytes(label, present) if spec.mask else None,
            mask_bytes(label, flat) if spec.element_mask else None,
        )
        failures = tuple(RowFailure(row, Cause(CauseKind.CONTRACT, bad[row], spec.name)) for row in sorted(bad))
        return SourceColumn(report, failures)

    def _elements(self, flat: list[Any], values: Sequence[Block]) -> tuple[Block, ...]:
        try:
            return self.store_rows(flat)
        except BadRow:
            self.release(block.id for block in values)
            raise


def _check_source(spec: OutputSpec, label: str, value: Any) -> None:
    if spec.mask:
        mask_bytes(label, [value])
    if spec.group != NO_ID:
        group_lengths(label, [value])
        if spec.element_mask:
            mask_bytes(f"an element of {label}", value)


class SlotPolicy:
    """How many objects of its own each reply of a Call may fill, from the bytes that were seen.

    Small outputs travel inline; where a batch brings more, there is one object for about ``OBJECT_BYTES``, so that
    a consumer fetches little that it does not need and memory is freed in small steps.
    """

    def __init__(self, streams: int) -> None:
        self._streams = streams
        self._expected: float | None = None

    def slots(self) -> int:
        if not self._streams:
            return 0
        if self._expected is None:
            return self._streams
        if self._expected <= INLINE_BATCH_BYTES:
            return 0
        wanted = int(self._expected // OBJECT_BYTES) + self._streams
        return max(self._streams, min(wanted, _MAX_SLOTS))

    def seen(self, nbytes: int) -> None:
        """A batch brought ``nbytes``. The estimate follows a growth at once and a decline slowly."""
        if self._expected is None or nbytes > self._expected:
            self._expected = float(nbytes)
        else:
            self._expected += 0.2 * (nbytes - self._expected)
