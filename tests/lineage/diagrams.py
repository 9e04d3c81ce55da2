"""The diagrams and tables of docs/semantics.md, made from the transition tables.

``python -m tests.lineage.diagrams`` writes them into the page; a test holds them up to date.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from rayorch_flows.lineage import tables
from rayorch_flows.lineage.tables import GRAIN_TRANSITIONS, Phase, Verdict
from rayorch_flows.program.outcomes import OutcomeCode

PAGE = Path(__file__).resolve().parents[2] / "docs" / "semantics.md"
CODES = list(OutcomeCode)
VERDICTS = {
    Verdict.WAIT: "wait",
    Verdict.GO: "go on",
    Verdict.DROP: "Dropped, unless another fails",
    Verdict.SUPPRESS: "Suppressed",
}


def life_cycle() -> str:
    """The phases of a Grain as a Mermaid state diagram."""
    names = {phase: phase.name.lower() for phase in Phase}
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {names[Phase.WAITING]}"]
    lines += [f"    {names[phase]} --> {names[to]}: {event}" for (phase, event), to in GRAIN_TRANSITIONS.items()]
    return "\n".join([*lines, f"    {names[Phase.SEALED]} --> [*]", "```"])


def told(code: int) -> str:
    return "wait" if code == OutcomeCode.UNRESOLVED else OutcomeCode(code).name.capitalize()


def rules() -> str:
    """What each primitive makes of the outcome that it looks at, as one table."""
    columns: dict[str, Callable[[int], str]] = {
        "argument": lambda code: VERDICTS[Verdict(tables.REQUIRED_INPUT[code])],
        "`F.optional` argument": lambda code: VERDICTS[Verdict(tables.OPTIONAL_INPUT[code])],
        "mask of a Present source": lambda code: " or ".join(
            dict.fromkeys(told(outcome) for outcome in reversed(tables.MASK_RULE[code]))
        ),
        "`F.settle`": lambda code: told(tables.SETTLED[code]),
        "group of an Expansion": lambda code: told(tables.EXPANSION[code]).replace("Present", "Succeeded"),
        "member of a reduce": lambda code: VERDICTS[Verdict(tables.MEMBER_RULE[code])],
        "survivor's value": lambda code: VERDICTS[Verdict(tables.VALUE_RULE[code])],
    }
    lines = [f"| it is | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}"]
    for code in CODES:
        name = "unresolved" if code == OutcomeCode.UNRESOLVED else OutcomeCode(code).name.capitalize()
        lines.append(f"| {name} | {' | '.join(cell(code) for cell in columns.values())} |")
    return "\n".join(lines)


GENERATED = {"life cycle": life_cycle, "rules": rules}


def render(page: str) -> str:
    """The page with everything between ``<!-- name -->`` and ``<!-- end -->`` made anew."""
    for name, make in GENERATED.items():
        page, count = re.subn(rf"(<!-- {name} -->\n).*?(<!-- end -->)", rf"\1\n{make()}\n\n\2", page, flags=re.DOTALL)
        assert count == 1, f"{PAGE.name} has no place for {name!r}"
    return page


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text()))
