"""What a command does when its embedded server ends under it: it starts the server again, and goes on."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final

from rayorch_flows.errors import InfrastructureError
from rayorch_flows.orchestration.server import prefect_server
from rayorch_flows.orchestration.server.prefect_server import Server
from rayorch_flows.orchestration.settings.home import Home

LOOK_EVERY_S: Final = 0.5
STARTS: Final = 3
"""How often a server is started again within ``WITHIN_S`` before the command gives up."""
WITHIN_S: Final = 120.0
AGAIN: Final = "The embedded Prefect server has ended unexpectedly; started it again"


@contextmanager
def kept(home: Home, server: Server, tell: Callable[[str], None]) -> Generator[None]:
    """Have the embedded server run while the block does. The block ends as by SIGTERM when it cannot be started."""
    if not server.embedded:
        yield
        return
    over = threading.Event()
    troubles: list[InfrastructureError] = []

    def keep() -> None:
        try:
            _keep(home, server, tell, over)
        except (InfrastructureError, OSError) as error:
            if not over.is_set():
                troubles.append(_given_up(home, error))
                os.kill(os.getpid(), signal.SIGTERM)

    keeper = threading.Thread(target=keep, name="server-keeper", daemon=True)
    keeper.start()
    try:
        yield
    except BaseException as error:
        if troubles:
            raise troubles[0] from error
        raise
    finally:
        over.set()
        keeper.join()


def _keep(home: Home, server: Server, tell: Callable[[str], None], over: threading.Event) -> None:
    starts: list[float] = []
    while not over.wait(LOOK_EVERY_S):
        if prefect_server.runs(home, server):
            continue
        now = time.monotonic()
        starts = [start for start in starts if now - start < WITHIN_S]
        if len(starts) == STARTS:
            raise InfrastructureError(f"it was started again {STARTS} times and ended each time")
        if prefect_server.start_again(home, server):
            starts.append(now)
            tell(AGAIN)


def _given_up(home: Home, error: Exception) -> InfrastructureError:
    return InfrastructureError(
        f"the embedded Prefect server has ended, and cannot be started again: {error}",
        where=str(home.server_log),
        next_step="run the command again: finished work is kept",
    )
