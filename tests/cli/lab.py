"""A home of its own for commands under test, and a client of its Prefect server."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rayorch_flows.orchestration.cluster import connection as cluster
from rayorch_flows.orchestration.server import prefect_server as server
from rayorch_flows.orchestration.server import processes
from rayorch_flows.orchestration.settings.home import Home

ROOT = Path(__file__).parents[2]
TOY = f"{ROOT}/tests/orchestration/toy_flow.py:FLOW"
PATIENCE_S = 240
SOON_S = 60.0
"""What takes a few seconds, on a busy machine."""
LEASES = ("PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE", "prefect.server.concurrency.lease_storage.filesystem")


@dataclass
class Finished:
    status: int
    output: str

    @property
    def summary(self) -> dict[str, Any]:
        return json.loads(self.output.strip().splitlines()[-1])


@dataclass
class Running:
    """A command that runs in a session of its own; its output goes to a file."""

    process: subprocess.Popen[bytes]
    log: Path

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def tail(self) -> str:
        return self.output()[-3000:]

    def wait_for(self, text: str) -> None:
        found = processes.wait_until(lambda: text in self.output() or self.process.poll() is not None, PATIENCE_S, 0.1)
        assert found, self.output()
        assert text in self.output(), self.output()

    def send(self, number: signal.Signals) -> Finished:
        self.process.send_signal(number)
        return self.finish()

    def finish(self) -> Finished:
        try:
            status = self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"the command hangs:\n{self.output()}") from None
        return Finished(status, self.output())


@dataclass
class Lab:
    directory: Path
    environment: dict[str, str] = field(default_factory=dict)
    commands: list[Running] = field(default_factory=list[Running])
    server: GivenServer | None = None

    @property
    def home(self) -> Home:
        return Home(self.directory / "home")

    @property
    def log(self) -> Path:
        return self.directory / "toy.log"

    def notes(self, beginning: str = "") -> list[str]:
        """What the toy flow's Functions noted."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [line for line in lines if line.startswith(beginning)]

    def corpus(self, name: str, **files: str) -> Path:
        folder = self.directory / name
        folder.mkdir()
        for stem, text in files.items():
            (folder / f"{stem}.txt").write_text(text)
        return folder

    def start(self, *arguments: str | Path, **environment: str) -> Running:
        log = self.directory / f"command-{len(self.commands)}.log"
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "RAY_", "RAYORCH_"))
        }
        with log.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "rayorch_flows.cli", *map(str, arguments)],
                env=kept
                | {
                    "PYTHONPATH": str(ROOT),
                    "RAYORCH_FLOWS_HOME": str(self.home.root),
                    "RAYORCH_TOY_LOG": str(self.log),
                }
                | self.environment
                | environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_interruptible,
            )
        self.commands.append(Running(process, log))
        return self.commands[-1]

    def run(self, *arguments: str | Path, **environment: str) -> Finished:
        return self.start(*arguments, **environment).finish()

    def ingest(self, source: Path, table: Path, *arguments: str, **environment: str) -> Finished:
        return self.start_ingest(source, table, *arguments, **environment).finish()

    def start_ingest(self, source: Path, table: Path, *arguments: str, **environment: str) -> Running:
        return self.start("ingest", source, "--table", table, "--flow", TOY, "--json", *arguments, **environment)

    @property
    def api_url(self) -> str:
        """The Prefect server of the lab's commands: the one they are given, or their embedded one."""
        given = self.environment.get("PREFECT_API_URL")
        if given:
            return given
        state = server.read_state(self.home)
        assert state is not None
        return state.api_url

    def api(self, path: str, body: dict[str, Any] | None = None, *, method: str = "POST") -> Any:
        """Ask the lab's Prefect server."""
        request = urllib.request.Request(
            f"{self.api_url}/{path}",
            data=json.dumps(body or {}).encode(),
            headers={"content-type": "application/json"},
            method=method,
        )
        deadline = time.monotonic() + 30
        while True:
            try:
                with urllib.request.urlopen(request, timeout=30) as answer:
                    return json.loads(answer.read() or b"null")
            except urllib.error.HTTPError as error:
                if error.code != 503 or time.monotonic() > deadline:  # a busy server asks to come again
                    raise
            time.sleep(0.5)

    def engines(self) -> list[dict[str, Any]]:
        """The engine hosts, as the command lists them."""
        finished = self.run("engines", "--json")
        assert finished.status == 0, finished.output
        return [json.loads(line) for line in finished.output.splitlines() if line.startswith("{")]

    def eventually(self, ask: Any, enough: int) -> list[Any]:
        """Ask until there are so many; events, task runs and logs reach the server with a delay."""
        deadline = time.monotonic() + PATIENCE_S / 2
        while True:
            found = ask()
            if len(found) >= enough or time.monotonic() > deadline:
                return found
            time.sleep(0.3)

    def leftovers(self) -> list[str]:
        """Command lines of processes that belong to this lab, the shared server not counted."""
        state = server.read_state(self.home)
        known = {os.getpid()} | ({state.process.pid} if state else set())
        sessions = [json.loads(each.read_text())["directory"] for each in self.home.ray_sessions.glob("*")]
        found: list[str] = []
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                line = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if int(entry.parent.name) not in known and any(each in line for each in [str(self.directory), *sessions]):
                found.append(line)
        return found


class GivenServer:
    """A server that users start themselves and name by PREFECT_API_URL; it can be stopped and started again."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.port = _free_port()
        lab.environment |= {"PREFECT_API_URL": f"http://127.0.0.1:{self.port}/api"}
        self.start()

    def start(self) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
        home = self.lab.directory / "server"
        where = ("--host=127.0.0.1", f"--port={self.port}")
        with (self.lab.directory / "server.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "prefect", "server", "start", "--no-ui", *where],
                env=kept
                | {"PREFECT_HOME": str(home), "PREFECT_SERVER_ANALYTICS_ENABLED": "false", LEASES[0]: LEASES[1]},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.process = processes.ProcessId.of(process.pid)

    def wait_answer(self) -> None:
        assert processes.wait_until(lambda: not server.health_trouble(self.lab.api_url), 120, 0.2)

    def stop(self) -> None:
        """As a service manager does: SIGTERM, and in the end SIGKILL, to all of it."""
        processes.stop(self.process)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


@contextmanager
def a_lab(*, shared: bool, given_server: bool = False) -> Generator[Lab]:
    """A lab in a short path; with a server and a cluster that outlive single commands, or with nothing running."""
    with tempfile.TemporaryDirectory(prefix="lab-") as directory, contextlib.ExitStack() as ends:
        lab = Lab(Path(directory))
        lab.home.create()
        ends.callback(_stop_servers, lab)
        ends.callback(cluster.clean_sessions, lab.home)
        ends.callback(_stop_cluster, lab)
        ends.callback(_kill_commands, lab)
        if given_server:
            lab.server = GivenServer(lab)
            _start_cluster(lab)
            lab.server.wait_answer()
        elif shared:
            claimed = server.claim(lab.home)
            _start_cluster(lab)
            server.wait_answer(lab.home, claimed)
        yield lab


def _kill_commands(lab: Lab) -> None:
    """Those that a failed test has left, with what they have started."""
    for command in lab.commands:
        if command.process.poll() is None:
            os.killpg(command.process.pid, signal.SIGKILL)
            command.process.wait()


def _stop_cluster(lab: Lab) -> None:
    for process in cluster._processes_of(f"{lab.directory}/ray"):
        processes.stop(process, grace_s=1.0)


def _stop_servers(lab: Lab) -> None:
    if lab.server is not None:
        lab.server.stop()
    state = server.read_state(lab.home)
    if state is not None:
        processes.stop(state.process)


def _start_cluster(lab: Lab) -> None:
    """A cluster of its own with token authentication, named by RAY_ADDRESS to the lab's commands."""
    port = _free_port()
    lab.environment |= {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(cluster._token_file(lab.home)),
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }
    command = [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", f"--port={port}"),
        *("--num-cpus=4", "--include-dashboard=false", "--object-store-memory=200000000"),
        *("--disable-usage-stats", f"--temp-dir={lab.directory}/ray"),
    ]
    log = lab.directory / "cluster.log"
    with log.open("wb") as file:
        subprocess.Popen(
            command,
            env=os.environ | lab.environment | {"PYTHONPATH": str(ROOT), "RAYORCH_TOY_LOG": str(lab.log)},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    started = processes.wait_until(lambda: b"Ray runtime started" in log.read_bytes(), 90, 0.2)
    assert started, log.read_text()
    lab.environment["RAY_ADDRESS"] = f"127.0.0.1:{port}"


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def _interruptible() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
