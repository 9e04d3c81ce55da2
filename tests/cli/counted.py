"""A corpus whose rows go on only as far as a test allows, and what Functions have seen of it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from rayorch_flows.orchestration.ingest.prepared_flow import prepare
from rayorch_flows.records.table import RecordTable
from tests.cli.lab import ROOT, Lab, Running
from tests.cli.pool import MICROBATCH_DEPLOYMENT, start

COUNTED = f"{ROOT}/tests/orchestration/counted_flow.py:FLOW"
OTHER = f"{ROOT}/tests/orchestration/counted_flow.py:OTHER"
LINES = 2
AT_THE_ACTOR = 4
"""Rows that an actor holds and will still see: the batch that it executes, and the next, of two rows each."""
SOME = 6
"""Rows that finish the first sources, in order, of a microbatch of four or more: it is in the middle."""


class Corpus:
    """The sources of one test and its table."""

    def __init__(self, lab: Lab, name: str, count: int) -> None:
        self.lab = lab
        self.stems = [f"{name}{number:02}" for number in range(count)]
        self.source = lab.corpus(name, **{s: "\n".join(f"{s} {n}" for n in range(LINES)) for s in self.stems})
        self.table = lab.directory / f"{name}-table"
        self.fingerprint = prepare(COUNTED).fingerprint
        self.allowed = Path(f"{lab.log}.{name}")
        self.allow(SOME)

    def allow(self, rows: int) -> None:
        """So many rows of the corpus go through, and the others wait for more to be allowed."""
        new = self.allowed.with_name(f"{self.allowed.name}.new")
        new.write_text(str(rows))
        new.replace(self.allowed)

    def hurry(self) -> None:
        """No row waits any more."""
        self.allowed.unlink(missing_ok=True)

    def command(self, size: int, *arguments: str, flow: str = COUNTED) -> Running:
        """Start the command that ingests it."""
        ours = ("--table", self.table, "--flow", flow, "--microbatch-size", str(size), "--json")
        return self.lab.start("ingest", self.source, *ours, *arguments)

    def deployed(self, size: int, **parameters: Any) -> dict[str, Any]:
        """Start the flow run that ingests it, with each microbatch a run of its deployment."""
        return start(
            self.lab,
            "ingest",
            source=str(self.source),
            table=str(self.table),
            flow=COUNTED,
            microbatch_size=size,
            deployment=MICROBATCH_DEPLOYMENT,
            **parameters,
        )

    def staged(self, microbatch: str | None = None) -> set[str]:
        """Sources that are finished and durable, of one microbatch or of all that have not committed."""
        if not (self.table / "_delta_log" / f"{0:020}.json").exists():
            return set()
        table = RecordTable.open(self.table)
        ids = table.manifests(self.fingerprint).ids() if microbatch is None else [microbatch]
        rows = [table.staging(self.fingerprint).read(each).rows["uri"].to_pylist() for each in ids]
        return {Path(uri).stem for part in rows for uri in part}

    def sources(self, microbatch: str) -> set[str]:
        manifest = RecordTable.open(self.table).manifests(self.fingerprint).read(microbatch)
        assert manifest is not None
        return {Path(uri).stem for uri in manifest.uris}

    def done(self, stem: str) -> Counter[str]:
        """The rows of this source that Functions have seen."""
        lines = [line.lower() for line in self.lab.notes()]
        return Counter(line for line in lines if line.split()[1] == stem)

    def begun(self) -> bool:
        """Whether every microbatch is in the engine: its first Function has seen every source."""
        return all(self.done(stem)[f"read {stem}"] for stem in self.stems)

    def ran(self) -> bool:
        """Whether the last Function has seen every source."""
        return all(self.done(stem)[f"join {stem}"] for stem in self.stems)

    def count(self, which: set[str]) -> int:
        return sum(len(self.done(stem)) for stem in which)

    def expect_done_once(self, which: set[str]) -> None:
        for stem in which:
            once = [f"read {stem}", f"join {stem}", *(f"shout {stem} {n}" for n in range(LINES))]
            assert self.done(stem) == Counter(once), f"{stem} was finished, and something of it was done again"

    def expect_complete(self) -> None:
        """Exactly one row for every source, with all its lines."""
        rows = RecordTable.open(self.table).rows(["uri", "outcome", "text"]).to_pylist()
        found = sorted((Path(row["uri"]).stem, row["outcome"], row["text"]) for row in rows)
        assert found == [(s, "present", "\n".join(f"{s} {n}".upper() for n in range(LINES))) for s in self.stems]
