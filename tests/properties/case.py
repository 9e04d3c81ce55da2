"""One property case: four byte strings that fix the program, the size of the run, the outcomes and the schedule.

``check(case)`` runs it; ``shrink(case, fails)`` makes a failing one small. The bytes can come from a seed (fast, for
many programs) or from Hypothesis.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from tests.properties.driver import Driver, Machine
from tests.properties.programs import Reader, Spec, generate, lower
from tests.properties.world import Outcomes, Rates

PARTS = ("program", "knobs", "outcomes", "schedule")
SIZES = {"program": 160, "knobs": 16, "outcomes": 256, "schedule": 600}


@dataclass(frozen=True)
class Case:
    program: bytes = b""
    knobs: bytes = b""
    outcomes: bytes = b""
    schedule: bytes = b""

    def spec(self) -> Spec:
        return generate(Reader(self.program))

    def driver(self, make_machine: Callable[..., Any] = Machine) -> Driver:
        r = Reader(self.knobs)
        rates = (0, 0, 0, 8, 30, 90)
        plan = lower(self.spec())
        rows = [(1, 2, 0, 3, 1, 4, 2)[r.below(7)] for _ in range(1 + r.below(3))]
        odds = Rates(
            record=rates[r.below(6)],
            group=rates[r.below(6)],
            poison=rates[r.below(6)],
            masked=(0, 20, 80, 128, 200)[r.below(5)],
            source=rates[r.below(6)],
            ragged=rates[r.below(6)],
        )
        return Driver(
            plan,
            Reader(self.schedule),
            microbatches=[(n, Outcomes(plan, self.outcomes, odds, f"mb{i}", i * 7919)) for i, n in enumerate(rows)],
            faults=(0, 0, 1, 3, 9)[r.below(5)],
            cancels=(0, 0, 0, 1, 2)[r.below(5)],
            replays=(0, 1, 4)[r.below(3)],
            pauses=(0, 0, 0, 2)[r.below(4)],
            make_machine=make_machine,
        )

    def __str__(self) -> str:
        driver = self.driver()
        parts = ", ".join(f"{part}=bytes.fromhex({getattr(self, part).hex()!r})" for part in PARTS)
        first = next(iter(driver.microbatches.values()))
        return (
            f"Case({parts})\n{self.spec()}\n  microbatches of {[m.rows for m in driver.microbatches.values()]} rows, "
            f"{first.outcomes.rates}, faults={driver.faults}, cancels={driver.cancels}, replays={driver.replays}"
        )


def seeded(seed: int) -> Case:
    rng = random.Random(seed)
    return Case(**{part: rng.randbytes(size) for part, size in SIZES.items()})


def check(case: Case, make_machine: Callable[..., Any] = Machine) -> Driver:
    """Run one case; raises where machine and reference disagree."""
    driver = case.driver(make_machine)
    driver.run()
    return driver


def failure(case: Case) -> str | None:
    """The kind of the case's failure, stable enough to shrink by."""
    try:
        check(case)
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:24]}"
    return None


def shrink(case: Case, fails: Callable[[Case], object], budget: int = 4000) -> Case:
    """Cut chunks, zero and lower bytes of each part, for as long as the case still fails."""
    tries = 0
    better = True
    while better and tries < budget:
        better = False
        for part in PARTS:
            for smaller in _smaller(getattr(case, part)):
                data = getattr(case, part)
                candidate = smaller(data)
                if candidate == data or (len(candidate), candidate) >= (len(data), data):
                    continue
                tries += 1
                if tries > budget:
                    return case
                if fails(attempt := replace(case, **{part: candidate})):
                    case, better = attempt, True
    return case


def _smaller(data: bytes) -> Iterator[Callable[[bytes], bytes]]:
    size = len(data)
    while size:
        for at in reversed(range(0, len(data), size)):
            yield lambda now, at=at, size=size: now[:at] + now[at + size :]
            yield lambda now, at=at, size=size: now[:at] + bytes(len(now[at : at + size])) + now[at + size :]
        size //= 2
    for at in range(len(data)):
        for value in (1, 2, 3, 4, 6, 8, 16, 32, 64, 128):
            yield (
                lambda now, at=at, value=value: (
                    now[:at] + bytes([value]) + now[at + 1 :] if at < len(now) and value < now[at] else now
                )
            )
