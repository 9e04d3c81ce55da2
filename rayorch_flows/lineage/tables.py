"""The rules of the machine, as tables. Nothing else changes a phase or an outcome.

A Grain moves through four phases; an Item gets one of four outcomes, once. Every table is total over its codes:
an entry ``ILLEGAL`` means that the event must not happen there, and nothing changes when it does. The tables are
byte strings, so that one ``bytes.translate`` applies an event to a whole range of Grains.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum, StrEnum
from typing import Final

from rayorch_flows.program.outcomes import OutcomeCode


class Phase(IntEnum):
    """Where a Grain is in its life (paper, equation 2)."""

    WAITING = 0
    READY = 1
    IN_FLIGHT = 2
    SEALED = 3


class GrainEvent(StrEnum):
    """What can happen to a Grain."""

    INPUTS_PRESENT = "inputs present"
    INPUTS_TERMINAL = "inputs terminal"
    RESERVE = "reserve"
    ACCEPT = "accepted Report"
    RETRY = "attempt failed, retry granted"
    BARRIER = "barrier or cancel"


GRAIN_TRANSITIONS: Final[dict[tuple[Phase, GrainEvent], Phase]] = {
    (Phase.WAITING, GrainEvent.INPUTS_PRESENT): Phase.READY,
    (Phase.WAITING, GrainEvent.INPUTS_TERMINAL): Phase.SEALED,
    (Phase.WAITING, GrainEvent.BARRIER): Phase.SEALED,
    (Phase.READY, GrainEvent.RESERVE): Phase.IN_FLIGHT,
    (Phase.READY, GrainEvent.BARRIER): Phase.SEALED,
    (Phase.IN_FLIGHT, GrainEvent.ACCEPT): Phase.SEALED,
    (Phase.IN_FLIGHT, GrainEvent.RETRY): Phase.READY,
    (Phase.IN_FLIGHT, GrainEvent.BARRIER): Phase.SEALED,
}

ILLEGAL: Final = 255


class IllegalTransition(AssertionError):
    """An event reached a Grain in a phase that does not allow it: a defect of the machine or of its driver."""


def _event_table(event: GrainEvent) -> bytes:
    table = bytearray([ILLEGAL]) * 256
    for (phase, happening), to in GRAIN_TRANSITIONS.items():
        if happening is event:
            table[phase] = to
    return bytes(table)


EVENT_TABLES: Final[dict[GrainEvent, bytes]] = {event: _event_table(event) for event in GrainEvent}


def move(phases: bytearray, grains: Iterable[int], event: GrainEvent) -> None:
    """Apply ``event`` to every Grain; raise IllegalTransition, with nothing changed, if one of them forbids it."""
    table = EVENT_TABLES[event]
    if isinstance(grains, range) and grains.step == 1:
        moved = phases[grains.start : grains.stop].translate(table)
        if ILLEGAL in moved:
            _reject(phases, grains, event)
        phases[grains.start : grains.stop] = moved
        return
    after = [table[phases[grain]] for grain in grains]
    if ILLEGAL in after:
        _reject(phases, grains, event)
    for grain, phase in zip(grains, after, strict=True):
        phases[grain] = phase


def _reject(phases: bytearray, grains: Iterable[int], event: GrainEvent) -> None:
    table = EVENT_TABLES[event]
    wrong = [(grain, Phase(phases[grain]).name) for grain in grains if table[phases[grain]] == ILLEGAL]
    raise IllegalTransition(f"{event} is illegal for Grains {wrong[:5]}")


_U, _P, _D, _F, _S = (
    OutcomeCode.UNRESOLVED,
    OutcomeCode.PRESENT,
    OutcomeCode.DROPPED,
    OutcomeCode.FAILED,
    OutcomeCode.SUPPRESSED,
)


class Verdict(IntEnum):
    """What one resolved or unresolved input means for a Call."""

    WAIT = 0
    GO = 1
    DROP = 2
    SUPPRESS = 3


REQUIRED_INPUT: Final = bytes([Verdict.WAIT, Verdict.GO, Verdict.DROP, Verdict.SUPPRESS, Verdict.SUPPRESS])
OPTIONAL_INPUT: Final = bytes([Verdict.WAIT, Verdict.GO, Verdict.GO, Verdict.SUPPRESS, Verdict.SUPPRESS])

SEALED_OUTCOME: Final[dict[Verdict, OutcomeCode]] = {Verdict.DROP: _D, Verdict.SUPPRESS: _S}
"""What the outputs of a Call become when its inputs are terminal without letting it run."""

MASK_RULE: Final[tuple[tuple[OutcomeCode, ...], ...]] = (
    # indexed by the mask's outcome, then by its boolean (looked at only when the mask is Present)
    (_U, _U),
    (_D, _P),
    (_D, _D),
    (_F, _F),
    (_S, _S),
)

SETTLED: Final = bytes([_U, _P, _D, _P, _P])
"""settle: Failed or Suppressed become Present (with a Hole), the rest is unchanged."""

EXPANSION: Final = bytes([_U, _P, _D, _F, _F])
"""expand: the group's outcome gives the Expansion's (PRESENT stands for Succeeded)."""

REDUCED_EXPANSION: Final = bytes([_U, _P, _D, _S, _S])
"""reduce: what the Expansion's outcome says before any member is looked at (PRESENT: look at the members)."""


MEMBER_RULE: Final = bytes([Verdict.WAIT, Verdict.GO, Verdict.GO, Verdict.SUPPRESS, Verdict.SUPPRESS])
"""reduce: what a member's outcome says when its turn comes, in ordinal order (GO: look at the next one)."""

VALUE_RULE: Final = bytes([Verdict.WAIT, Verdict.GO, Verdict.SUPPRESS, Verdict.SUPPRESS, Verdict.SUPPRESS])
"""reduce: the same for a surviving member's value."""


def merge_publication(held: int, published: int) -> int:
    """The fact after a publication: irreversible, an identical repeat is accepted, a conflict raises."""
    if held in (_U, published):
        return published
    raise IllegalTransition(f"conflicting publication: {OutcomeCode(held).name} then {OutcomeCode(published).name}")
