"""What an ingest says while it runs: lines for the log of its flow run and for whoever watches it."""

from __future__ import annotations

from prefect import get_run_logger

from rayorch_flows.orchestration.reporting.progress import Board
from rayorch_flows.orchestration.reporting.summary import MicrobatchSummary
from rayorch_flows.records.lifecycle import IngestPlan


class RunLog:
    """Says each line to the flow run's log and to the board."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._logger = get_run_logger()

    def say(self, line: str) -> None:
        self._logger.info(line)
        self._board.tell(line)

    def work(self, work: IngestPlan, problems: list[str]) -> None:
        for problem in problems:
            self.say(f"Not readable, left out: {problem}")
        if not work.listed:
            self.say("No file of the source counts, by the flow's patterns or the block's: nothing to run")
            return
        if not work.microbatches:
            self.say(f"{work.listed} sources, all of them in the table already: nothing to run")
            return
        count = len(work.microbatches)
        self.say(
            f"{work.listed} sources, {work.unchanged} in the table already, {work.pending} to ingest in "
            f"{count} {'microbatch' if count == 1 else 'microbatches'}"
            + (f", {work.adopted} of them left unfinished before" if work.adopted else "")
        )

    def microbatch(self, part: MicrobatchSummary) -> None:
        name = part.microbatch[:10]
        if part.committed:
            self.say(
                f"Microbatch {name}: {part.present} present, {part.failed} failed, {part.dropped} dropped, "
                f"{part.children} {self._board.child_noun} in {part.elapsed_s:.1f} s"
                + (f"; {part.error}" if part.error else "")
            )
        else:
            self.say(f"Microbatch {name} is not committed: {part.error}")
