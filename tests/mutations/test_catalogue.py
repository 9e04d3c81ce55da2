"""The catalogue of mutants follows the source; the check itself is a command (docs/semantics.md)."""

from __future__ import annotations

from tests.mutations.__main__ import attack, stale
from tests.mutations.catalogue import MUTANTS


def test_every_mutant_still_fits_the_source() -> None:
    assert stale(MUTANTS) == []
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 25


def test_a_mutant_is_caught() -> None:
    """One in full, so that the script itself cannot rot."""
    (mutant,) = [mutant for mutant in MUTANTS if mutant.name == "filter: the mask is reversed"]
    assert attack(mutant, programs=50)[0].startswith("failed at")
