"""A Prefect server and a Ray cluster for one measurement, in a home of their own, gone afterwards."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import ledger
from rayorch_flows.orchestration.cluster import connection as clusters
from rayorch_flows.orchestration.server import prefect_server as servers
from rayorch_flows.orchestration.server.processes import wait_until
from rayorch_flows.orchestration.settings.home import START_TIMEOUT_S, Home

ROOT = Path(__file__).resolve().parent.parent
FLOW = f"{ROOT}/benchmarks/trivial_flow.py:FLOW"


@dataclass(frozen=True)
class Lab:
    """``environment`` is that of processes which use the server and the cluster."""

    folder: Path
    api_url: str
    environment: dict[str, str]

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """POST to the API; GET without a body."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.api_url}/{path}", data, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def counts(self) -> dict[str, int]:
        """What was asked of the server so far."""
        with urllib.request.urlopen(self.api_url.removesuffix("/api") + "/counts", timeout=60) as answer:
            return json.load(answer)

    def sources(self, name: str, pages: Iterable[int]) -> Path:
        """A folder with a file a document; its name says how many pages it has."""
        folder = self.folder / name
        folder.mkdir()
        for number, count in enumerate(pages):
            (folder / f"{number:06}-{count}.doc").write_text(f"{number}\n")
        return folder

    def run(self, *command: str) -> str:
        """Run a module of Python to its end; its output."""
        done = subprocess.run(
            [sys.executable, "-m", *command],
            env=self.environment,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-3000:]}")
        return done.stdout


@contextmanager
def a_lab(folder: Path) -> Generator[Lab]:
    """In ``folder``; server and cluster are what a command starts for itself."""
    home = Home(folder / "home").create()
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
    api_url = f"http://127.0.0.1:{port}/api"
    environment = servers.server_environment(home, port)
    with started(("benchmarks.counted_server", str(port)), environment, folder / "server.log"), _ray(home) as address:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
        lab = Lab(
            folder,
            api_url,
            kept
            | {
                "PREFECT_API_URL": api_url,
                "PREFECT_HOME": str(folder / "client"),
                "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
                "PREFECT_LOGGING_TO_API_BATCH_INTERVAL": "0.2",
                "RAYORCH_FLOWS_HOME": str(home.root),
                "RAY_ADDRESS": address,
                ledger.FOLDER: os.environ[ledger.FOLDER],
            },
        )
        if not wait_until(lambda: _answers(lab), START_TIMEOUT_S, 0.2):
            raise RuntimeError("the Prefect server does not start:\n" + (folder / "server.log").read_text()[-3000:])
        yield lab


def _answers(lab: Lab) -> bool:
    try:
        return lab.ask("health") is True
    except OSError:
        return False


@contextmanager
def _ray(home: Home) -> Generator[str]:
    try:
        yield clusters.connect(home).address
    finally:
        clusters.disconnect()


@contextmanager
def started(command: Iterable[str], environment: dict[str, str], log: Path) -> Generator[None]:
    """A module of Python that runs meanwhile, in a session of its own, killed at the end with all that it started."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", *command],
            env=environment,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def waited(lab: Lab, run_id: str, timeout_s: float = 600) -> dict[str, Any]:
    """The flow run, when it is over."""
    deadline = time.monotonic() + timeout_s
    while True:
        (run,) = lab.ask("flow_runs/filter", {"flow_runs": {"id": {"any_": [run_id]}}})
        if run["state_type"] in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED"):
            return run
        if time.monotonic() > deadline:
            raise TimeoutError(f"the flow run {run['name']} is still {run['state_name']}")
        time.sleep(0.5)
