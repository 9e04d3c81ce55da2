"""Progress of an ingest for a person: a live display in a terminal, plain lines in a pipe."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rayorch_flows.orchestration.reporting import progress
from rayorch_flows.orchestration.reporting.progress import Board

LINE_EVERY_S: Final = 5.0
FRAMES_PER_S: Final = 5


@asynccontextmanager
async def displayed(console: Console) -> AsyncGenerator[Board]:
    """A board whose story and progress go to the console while the block runs."""
    began = time.monotonic()
    if console.is_terminal:
        with Live(console=console, refresh_per_second=FRAMES_PER_S, transient=True) as live:
            board = Board(tell=lambda line: console.print(line, highlight=False, markup=False))

            async def draw() -> None:
                while True:
                    live.update(_frame(board, began))
                    await asyncio.sleep(1 / FRAMES_PER_S)

            async with _background(draw):
                yield board
    else:
        board = Board(tell=lambda line: print(f"{_clock()} {line}", flush=True))

        async def lines() -> None:
            shown = ""
            while True:
                await asyncio.sleep(LINE_EVERY_S)
                total = board.total
                if board.stage == "ingesting" and (total.done or total.children):
                    line = progress.describe(total, _elapsed(board), board.child_noun)
                    if line != shown:
                        board.tell(line)
                        shown = line

        async with _background(lines):
            yield board


@asynccontextmanager
async def _background(work: Callable[[], Coroutine[Any, Any, None]]) -> AsyncGenerator[None]:
    task = asyncio.create_task(work())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def _frame(board: Board, began: float) -> Group:
    total = board.total
    elapsed = _elapsed(board)
    grid = Table.grid(padding=(0, 2))
    left = progress.eta_s(total, elapsed)
    rate = total.children / elapsed if elapsed else 0.0
    failed = total.failed + total.children_failed
    grid.add_row(
        ProgressBar(total=max(1, total.sources), completed=total.done, width=36),
        Text(f"{total.done}/{total.sources} sources"),
        Text(f"{total.children} {board.child_noun}, {rate:.1f} {board.child_noun}/s"),
        Text("" if left is None else f"{progress.duration(left)} left"),
        Text(f"{failed} failed" if failed else "no failures", style="red" if failed else "dim"),
    )
    status = Text(f"{board.stage} · {progress.duration(time.monotonic() - began)}", style="dim")
    return Group(status, grid) if board.sources else Group(status)


def _elapsed(board: Board) -> float:
    return 0.0 if board.began is None else time.monotonic() - board.began


def _clock() -> str:
    return time.strftime("%H:%M:%S")
