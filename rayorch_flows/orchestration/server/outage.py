"""What a flow run outlives: the end of whoever reads its output, and a server that is away for a while."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Final, ParamSpec, TypeVar

import httpx
from rich.console import Console

AWAY_S: Final = 300.0
"""How long a server may be away before a flow run gives up."""
_AGAIN_S: Final = 1.0
_AWAY_STATUS: Final = frozenset({502, 503, 504})

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


async def patiently(
    ask: Callable[Arguments, Awaitable[Answer]], *args: Arguments.args, **kwargs: Arguments.kwargs
) -> Answer:
    """Ask the Prefect server, again while it cannot be reached. Prefect's own retries leave new connections out."""
    until: float | None = None
    while True:
        try:
            return await ask(*args, **kwargs)
        except Exception as error:
            until = until or time.monotonic() + AWAY_S
            if not server_is_away(error) or time.monotonic() >= until or _is_cancelled():
                raise
        await asyncio.sleep(_AGAIN_S)


def _is_cancelled() -> bool:
    """Whether the failed request was to say so: Prefect lets a flow run's cancellation end in that failure."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def wait_no_more() -> None:
    """Let this process's requests fail at once from now on when no server answers.

    A flow run that is stopped says so to the server, and cannot be cancelled while it does: a minute each, with
    Prefect's own retries.
    """
    from prefect.settings.context import get_current_settings

    get_current_settings().client.max_retries = 0


def server_is_away(error: BaseException) -> bool:
    """Whether the request failed because no server answered it, not because of what it asked."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, httpx.HTTPStatusError):
            return seen.response.status_code in _AWAY_STATUS
        if isinstance(seen, httpx.TransportError):
            return True
        seen = seen.__cause__
    return False


def _be_quiet(self: Console) -> None:
    """Instead of ending the process, as rich does when nobody reads its output any more."""
    self.quiet = True
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


if "PREFECT__FLOW_RUN_ID" in os.environ:
    # this process belongs to one flow run, and its output to the worker: that one's death must not end the run at its
    # next line of log
    Console.on_broken_pipe = _be_quiet
