"""What goes into the machine and what comes out: frozen data, no behaviour.

The machine never sees a payload. A payload lies in a *block*, an opaque integer that the runtime maps to bytes or to
an object reference; an Item's handle is (block, row). Two reserved block ids stand for values without a payload.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from rayorch_flows.program.outcomes import Cause, Hole, ItemOutcome

MISSING_BLOCK: Final = -1
"""Handle block of a dropped optional value; the row is 0."""
HOLE_BLOCK: Final = -2
"""Handle block of a settled value; the row indexes ``Column.holes``."""


NOT_A_LIST: Final = -1
"""Length of a position in a reduced column that holds a single leaf in place of a list."""


@dataclass(frozen=True, slots=True)
class Block:
    """A run of consecutive payload rows: ``rows`` values in the block ``id``, ``nbytes`` bytes in all."""

    id: int
    rows: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Lost:
    """What stands in an output of a child Domain for an Item that is not Present."""

    outcome: ItemOutcome
    cause: Cause | None


@dataclass(frozen=True, slots=True)
class Column:
    """Handles of one argument for every row of a dispatch batch, or of one output of a source item.

    ``depth`` 0: row i is (blocks[i], rows[i]). Depth k: ``lengths`` holds k lists, outermost first; ``lengths[0]``
    has one entry a row, and the flat handles are the leaves in order. A length of ``NOT_A_LIST`` marks a position
    whose list was lost or dropped: it has one leaf (a hole or MISSING) and no entries further down.
    """

    depth: int
    lengths: tuple[list[int], ...]
    blocks: list[int]
    rows: list[int]
    holes: list[Hole | Lost]


@dataclass(frozen=True, slots=True)
class Segment:
    """The Grains of one microbatch in a dispatch batch: Entity indices in the Call's Domain and, beside each, the
    generation at which it was dispatched."""

    microbatch: str
    attempt: int
    grains: list[int]
    generations: list[int]


@dataclass(frozen=True, slots=True)
class DispatchBatch:
    """What one worker call carries. Rows are the segments' Grains, one segment after the other.

    ``alone``: its actor holds no other batch from its dispatch to its answer, so that a death can only be its own.
    """

    id: int
    module: int
    call: int
    segments: tuple[Segment, ...]
    columns: tuple[Column, ...]
    size: int
    alone: bool = False


@dataclass(frozen=True, slots=True)
class RowFailure:
    """Row ``row`` of a dispatch batch returned RecordFailure, or GroupFailure if ``group``."""

    row: int
    cause: Cause
    group: bool = False


@dataclass(frozen=True, slots=True)
class OutputReport:
    """One output of a dispatch batch. Only the Present rows (those not in ``BatchReport.failures``) count, in order.

    ``values``: blocks holding one payload a Present row (empty when the Port is not used as a value).
    ``elements``: blocks holding the flattened list elements of the Present rows, and ``lengths`` how many each row
    has (None when the Port is not expanded). ``mask``: one byte 0 or 1 a Present row (None when it is no mask);
    ``element_mask``: the same for each flattened element (None unless the EXPAND Port is a mask).
    """

    values: tuple[Block, ...] = ()
    elements: tuple[Block, ...] = ()
    lengths: list[int] | None = None
    mask: bytes | None = None
    element_mask: bytes | None = None


@dataclass(frozen=True, slots=True)
class BatchReport:
    """What the worker says about a dispatch batch: one Report for each of its Grains, as columns."""

    failures: tuple[RowFailure, ...]
    outputs: tuple[OutputReport, ...]


class AttemptFailure(StrEnum):
    """Why an attempt at a dispatch batch failed without an outcome."""

    EXCEPTION = "exception"
    WORKER_DIED = "worker_died"
    DEADLINE = "deadline"
    NOT_STARTED = "not_started"  # behind the batch that took its actor down, or one of several that may: not to blame


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """One source column of a microbatch, in the form of an output report over all its rows.

    ``failures`` are rows whose source value cannot be used (not a list where the program expands it).
    """

    report: OutputReport
    failures: tuple[RowFailure, ...] = ()


@dataclass(frozen=True, slots=True)
class SourceTerminal:
    """Every Grain under these source items is sealed and their outputs are terminal."""

    microbatch: str
    rows: list[int]


@dataclass(frozen=True, slots=True)
class MicrobatchDone:
    """All source items of the microbatch are terminal; its state goes once their results are taken."""

    microbatch: str


@dataclass(frozen=True, slots=True)
class MicrobatchAborted:
    """The microbatch stopped: an exception under an aborting policy. In-flight Grains are fenced off."""

    microbatch: str
    cause: Cause


@dataclass(frozen=True, slots=True)
class BlocksReleased:
    """Nobody needs these blocks any more: drop their payloads."""

    blocks: list[int]


Instruction = SourceTerminal | MicrobatchDone | MicrobatchAborted | BlocksReleased


@dataclass(frozen=True, slots=True)
class ChildOutcome:
    """One Entity below a source item: where it is, and what became of it (looked at under a settle)."""

    domain: str
    ordinals: tuple[int, ...]
    outcome: ItemOutcome
    cause: Cause | None = None


@dataclass(frozen=True, slots=True)
class SourceResult:
    """A terminal source item: the outcome of each output Port, their handles, and all its children.

    An output of a child Domain is PRESENT, with the list of its Items below the source item in order, a ``Lost`` in
    place of each that is not Present.
    ``columns[i]`` has one row if ``outcomes[i]`` is PRESENT, else it is None.
    """

    row: int
    outcomes: tuple[ItemOutcome, ...]
    causes: tuple[Cause | None, ...]
    columns: tuple[Column | None, ...]
    children: tuple[ChildOutcome, ...]
