"""What a command needs around its flows: the server, Prefect's settings, quiet logs; and the way back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from rayorch_flows.errors import InfrastructureError
from rayorch_flows.orchestration.server import prefect_server
from rayorch_flows.orchestration.server.keeper import kept
from rayorch_flows.orchestration.server.prefect_server import Server
from rayorch_flows.orchestration.settings.home import home


class Terminated(BaseException):
    """SIGTERM came: leave in order."""


@contextmanager
def session(*, verbose: bool = False, meanwhile: Callable[[], object] | None = None) -> Generator[Server]:
    """Have a Prefect server for the block, and leave nothing running behind it.

    ``meanwhile`` runs while an embedded server starts: slow imports, for example. Prefect must not have been imported
    before.
    """
    place = home()
    with _terminable():
        server = prefect_server.claim(place)
        try:
            os.environ.update(prefect_server.client_environment(place, server))
            if not verbose:
                os.environ["PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL"] = "CRITICAL"
            if meanwhile is not None:
                meanwhile()
            prefect_server.wait_answer(place, server)
            with kept(place, server, _tell):
                yield server
        except Exception as error:
            if _status(error) in (401, 403):
                raise InfrastructureError(
                    f"the Prefect server at {server.api_url} does not accept these credentials",
                    next_step="set PREFECT_API_AUTH_STRING=user:password, or PREFECT_API_KEY for Prefect Cloud",
                ) from error
            raise
        finally:
            _close(server)


def _tell(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


def _status(error: BaseException) -> int | None:
    """The HTTP status in an error of Prefect's client."""
    return getattr(getattr(error, "response", None), "status_code", None)


def _close(server: Server) -> None:
    """Each step whatever becomes of the one before; a second Ctrl-C does not leave the rest undone."""
    with _uninterrupted():
        for step in (lambda: _drain_prefect(server), _leave_cluster, lambda: prefect_server.release(home(), server)):
            with contextlib.suppress(Exception):
                step()


def _leave_cluster() -> None:
    from rayorch_flows.orchestration.cluster import connection

    connection.disconnect()


def _drain_prefect(server: Server) -> None:
    """Send what Prefect still holds back, while the server is there; later it would wait for it in vain."""
    if "prefect.events.worker" not in sys.modules or prefect_server.health_trouble(server.api_url):
        return
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogHandler

    async def drain() -> None:
        async with asyncio.timeout(5):
            await APILogHandler.aflush()
        drained: Any = EventsWorker.drain_all(timeout=5)
        if drained is not None:
            await drained

    asyncio.run(drain())


@contextmanager
def _terminable() -> Generator[None]:
    """SIGTERM raises, so that what is open gets closed."""

    def raise_terminated(number: int, frame: FrameType | None) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, raise_terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _uninterrupted() -> Generator[None]:
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
