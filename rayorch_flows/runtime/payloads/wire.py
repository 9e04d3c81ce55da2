"""What the driver and a worker say to each other: small tuples, pickled once, no objects per row.

Request: ``(batches, blocks, slots)``. ``batches`` lists (call, size, columns), one a dispatch batch; ``blocks`` lists
(block id, whole bytes | None), those of all batches, and a None is the next object argument; ``slots`` is how many
objects of its own the reply may fill, 0 where there are several batches.
Reply: a list of pickles, for each batch ``("ok", failures, outputs, started, ended)`` or
``("error", Raised, started, ended)``.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from rayorch_flows.lineage.protocol import Column, DispatchBatch
from rayorch_flows.program.outcomes import CauseKind
from rayorch_flows.program.plan import NO_ID, CallPlan, ModulePlan, Plan

OK: Final = "ok"
ERROR: Final = "error"

Piece = tuple[int, int, "bytes | int"]
"""(rows, bytes, whole bytes or the number of the slot that holds them)."""


class RawFailure(NamedTuple):
    """One row that returned RecordFailure or GroupFailure."""

    row: int
    kind: CauseKind
    message: str
    retryable: bool
    group: bool


class RawOutput(NamedTuple):
    """One output of a dispatch batch, as ``lineage.protocol.OutputReport`` without block ids."""

    values: list[Piece]
    elements: list[Piece]
    lengths: list[int] | None
    mask: bytes | None
    element_mask: bytes | None


class Raised(NamedTuple):
    """An exception out of a Function. ``pickled`` is empty where the exception cannot be pickled."""

    kind: CauseKind
    message: str
    traceback: str
    pickled: bytes


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """How one output of a Call, or a source, is used: as a value, as a mask, as a list whose elements become a
    Domain's Entities (``group``, or NO_ID), those elements as values, or as masks."""

    name: str
    value: bool
    mask: bool
    group: int = NO_ID
    elements: bool = False
    element_mask: bool = False

    @property
    def streams(self) -> int:
        return int(self.value) + int(self.elements)


@dataclass(frozen=True, slots=True)
class CallSpec:
    """What a worker has to know about a Call. ``names`` of the arguments: empty where positional, and those come
    first. ``plain``: one output, used as a value only."""

    id: int
    name: str
    names: tuple[str, ...]
    kwargs: tuple[tuple[str, Any], ...]
    outputs: tuple[OutputSpec, ...]
    positional: int = field(init=False)
    plain: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "positional", self.names.count(""))
        first = self.outputs[0]
        plain = len(self.outputs) == 1 and first.value and not first.mask and first.group == NO_ID
        object.__setattr__(self, "plain", plain)

    @property
    def streams(self) -> int:
        """How many payload streams a batch produces at most."""
        return sum(output.streams for output in self.outputs)


def output_spec(plan: Plan, port_id: int) -> OutputSpec:
    port = plan.ports[port_id]
    if port.as_group == NO_ID:
        return OutputSpec(port.name, port.as_value, port.as_mask)
    domain = plan.domains[port.as_group]
    child = plan.ports[domain.ports[domain.groups.index(port_id)]]
    return OutputSpec(port.name, port.as_value, port.as_mask, port.as_group, child.as_value, child.as_mask)


def call_spec(plan: Plan, call: CallPlan) -> CallSpec:
    names = tuple(source.name for source in call.inputs)
    return CallSpec(call.id, call.name, names, call.kwargs, tuple(output_spec(plan, p) for p in call.outputs))


def module_calls(plan: Plan, module: ModulePlan) -> tuple[CallSpec, ...]:
    return tuple(call_spec(plan, call) for call in plan.calls if call.module == module.id)


def pack_request(batches: Sequence[DispatchBatch], blocks: Sequence[tuple[int, bytes | None]], slots: int) -> bytes:
    packed = [(b.call, b.size, [(c.depth, c.lengths, c.blocks, c.rows, c.holes) for c in b.columns]) for b in batches]
    return pickle.dumps((packed, blocks, slots), 5)


def unpack_request(
    data: bytes,
) -> tuple[list[tuple[int, int, list[Column]]], list[tuple[int, bytes | None]], int]:
    packed, blocks, slots = pickle.loads(data)
    return [(call, size, [Column(*c) for c in columns]) for call, size, columns in packed], blocks, slots


def unpack_reply(data: bytes) -> list[tuple[Any, ...]]:
    return [pickle.loads(reply) for reply in pickle.loads(data)]
