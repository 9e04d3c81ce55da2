"""The Prefect server that the commands use: the given one, or an embedded one that lives in the project's home.

Commands that run at the same time share one embedded server. ``server.json`` in the home names the server's process
and the processes that use it; it is read and written under a file lock. The last user stops the server, and the server
itself stops when it finds that all its users are gone (``server_main``), so a killed command leaves nothing for long.
A server that ends under its users is started again by one of them, at the same port (``server_keeper``).
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from rayorch_flows.errors import InfrastructureError
from rayorch_flows.orchestration.server import processes
from rayorch_flows.orchestration.server.processes import ProcessId
from rayorch_flows.orchestration.settings.home import (
    ANSWER_TIMEOUT_S,
    PREFERRED_PORT,
    START_TIMEOUT_S,
    Home,
    given_api_url,
)

PORT_FREE_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class ServerState:
    """The embedded server as ``server.json`` describes it."""

    process: ProcessId
    port: int
    users: tuple[ProcessId, ...]

    @property
    def api_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/api"

    def live_users(self) -> tuple[ProcessId, ...]:
        return tuple(user for user in self.users if user.alive())


@dataclass(frozen=True, slots=True)
class Server:
    """A Prefect server to talk to. ``embedded``: this process is one of its users and has to release it."""

    api_url: str
    embedded: bool

    @property
    def ui_url(self) -> str:
        return self.api_url.removesuffix("/api")


def read_state(home: Home) -> ServerState | None:
    try:
        raw = json.loads(home.server_state.read_text())
        return ServerState(
            ProcessId(**raw["process"]), int(raw["port"]), tuple(ProcessId(**user) for user in raw["users"])
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_state(home: Home, state: ServerState | None) -> None:
    if state is None:
        home.server_state.unlink(missing_ok=True)
        return
    temporary = home.server_state.with_suffix(".new")
    temporary.write_text(json.dumps(asdict(state)))
    os.replace(temporary, home.server_state)


@contextmanager
def locked(home: Home) -> Generator[None]:
    """Hold the home's lock: one process at a time starts, stops, joins or leaves the server."""
    with home.lock.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def claim(home: Home) -> Server:
    """Use the server that the environment names, or start or join the embedded one. It need not answer yet."""
    given = given_api_url()
    if given is not None:
        return Server(given, embedded=False)
    home.create()
    me = ProcessId.current()
    with locked(home):
        state = read_state(home)
        if state is None or not state.process.alive():
            users = () if state is None else state.live_users()
            state = _start(home, users, (state.port if state is not None and users else PREFERRED_PORT, 0))
        _join(home, state, me)
    return Server(state.api_url, embedded=True)


def runs(home: Home, server: Server) -> bool:
    """Whether the process of the embedded server is there, at the address that this process knows."""
    state = read_state(home)
    return state is not None and state.process.alive() and state.api_url == server.api_url


def start_again(home: Home, server: Server) -> bool:
    """Start the embedded server, whose process is gone, at its port; False if another user has done so meanwhile."""
    me = ProcessId.current()
    with locked(home):
        state = read_state(home)
        ended = state is None or not state.process.alive()
        if state is None or ended:
            port = urllib.parse.urlsplit(server.api_url).port or 0
            state = _start(home, () if state is None else state.live_users(), (port,))
        elif state.api_url != server.api_url:
            raise InfrastructureError(f"it is at {state.api_url} now, not at {server.api_url}")
        _join(home, state, me)
    return ended


def release(home: Home, server: Server) -> None:
    """Stop using the server; the last user of the embedded one stops it."""
    if not server.embedded:
        return
    me = ProcessId.current()
    with locked(home):
        state = read_state(home)
        if state is None:
            return
        users = tuple(user for user in state.live_users() if user != me)
        if users:
            write_state(home, replace(state, users=users))
        else:
            processes.stop(state.process)
            write_state(home, None)


def wait_answer(home: Home, server: Server) -> None:
    """Return when the server answers; say clearly when it does not."""
    timeout_s = START_TIMEOUT_S if server.embedded else ANSWER_TIMEOUT_S
    deadline = time.monotonic() + timeout_s
    trouble = "no answer"
    while time.monotonic() < deadline:
        trouble = health_trouble(server.api_url)
        if not trouble:
            return
        if server.embedded:
            state = read_state(home)
            if state is None or not state.process.alive():
                raise InfrastructureError(
                    "the embedded Prefect server ended while it started:\n" + _tail(home.server_log),
                    where=str(home.server_log),
                )
        elif trouble.startswith("HTTP"):
            break
        time.sleep(0.05 if server.embedded else 0.5)
    raise InfrastructureError(
        f"no Prefect server answers at {server.api_url}: {trouble}",
        next_step="see " + str(home.server_log)
        if server.embedded
        else "start it, correct PREFECT_API_URL, or unset PREFECT_API_URL to use an embedded server",
    )


def client_environment(home: Home, server: Server) -> dict[str, str]:
    """What this process and its workers need in their environment before Prefect is imported."""
    settings = {
        "PREFECT_API_URL": server.api_url,
        "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
        "PREFECT_LOGGING_TO_API_BATCH_INTERVAL": "0.2",
    }
    if server.embedded:
        settings["PREFECT_HOME"] = str(home.prefect)
        settings["PREFECT_UI_URL"] = server.ui_url
    return settings


def server_environment(home: Home, port: int) -> dict[str, str]:
    """The environment of the embedded server: its own home and database, nothing of the caller's Prefect."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    return kept | {
        "PREFECT_HOME": str(home.prefect),
        "PREFECT_API_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{home.prefect / 'prefect.db'}",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_UI_API_URL": f"http://127.0.0.1:{port}/api",
        "PREFECT_UI_STATIC_DIRECTORY": str(home.prefect / "ui"),
        "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
        "PREFECT__SERVER_FINAL": "1",
    }


def _start(home: Home, users: tuple[ProcessId, ...], ports: tuple[int, ...]) -> ServerState:
    """A new process of the server. One that was just killed may hold its port for a moment longer."""
    with _listening(*ports, patience_s=PORT_FREE_S if users else 0.0) as sock:
        return ServerState(_launch(home, sock), int(sock.getsockname()[1]), users)


def _join(home: Home, state: ServerState, user: ProcessId) -> None:
    write_state(home, state if user in state.users else replace(state, users=(*state.live_users(), user)))


def _launch(home: Home, sock: socket.socket) -> ProcessId:
    """The server inherits the listening socket, so that nobody else can be the one that answers at its port."""
    command = [sys.executable, "-m", "rayorch_flows.orchestration.server.main", str(home.root), str(sock.fileno())]
    with home.server_log.open("ab") as log:
        process = subprocess.Popen(
            command,
            env=server_environment(home, int(sock.getsockname()[1])),
            pass_fds=[sock.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    return ProcessId.of(process.pid)


def _listening(*ports: int, patience_s: float = 0.0) -> socket.socket:
    """A socket that listens on loopback, at the first of these ports that is free; 0 is any."""
    until = time.monotonic() + patience_s
    for port in ports:
        sock = _bound(port)
        while sock is None and time.monotonic() < until:
            time.sleep(0.05)
            sock = _bound(port)
        if sock is not None:
            return sock
    raise InfrastructureError(f"port {ports[0]} on 127.0.0.1 is not free for the embedded Prefect server")


def _bound(port: int) -> socket.socket | None:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(("127.0.0.1", port))
        sock.listen(128)
    except OSError:
        sock.close()
        return None
    return sock


def health_trouble(api_url: str) -> str:
    """Why the server cannot be used, or nothing."""
    try:
        with urllib.request.urlopen(f"{api_url}/health", timeout=5):
            return ""
    except urllib.error.HTTPError as error:
        return f"HTTP {error.code} from {api_url}/health"
    except (OSError, ValueError) as error:
        return str(getattr(error, "reason", error))


def _tail(path: Path, lines: int = 8) -> str:
    try:
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return ""
