"""Where the project keeps its own things, and which server and cluster it is told to use."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

HOME_VARIABLE: Final = "RAYORCH_FLOWS_HOME"
PREFERRED_PORT: Final = 4270
START_TIMEOUT_S: Final = 90.0
"""How long the embedded server may take on its first start, when it creates its database."""
ANSWER_TIMEOUT_S: Final = 15.0
"""How long a server or a cluster that was named by its address may take to answer."""


@dataclass(frozen=True, slots=True)
class Home:
    """The project's own directory: the embedded server's database, the cluster's token, logs."""

    root: Path

    @property
    def prefect(self) -> Path:
        return self.root / "prefect"

    @property
    def server_state(self) -> Path:
        return self.root / "server.json"

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    @property
    def server_log(self) -> Path:
        return self.root / "server.log"

    @property
    def ray_token(self) -> Path:
        return self.root / "ray-token"

    @property
    def ray_sessions(self) -> Path:
        return self.root / "ray-sessions"

    def create(self) -> Home:
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.prefect.mkdir(exist_ok=True)
        self.ray_sessions.mkdir(exist_ok=True)
        return self


def home() -> Home:
    """``$RAYORCH_FLOWS_HOME``, or ``~/.rayorch-flows``."""
    given = os.environ.get(HOME_VARIABLE)
    return Home(Path(given).expanduser().absolute() if given else Path.home() / ".rayorch-flows")


def given_api_url() -> str | None:
    """The Prefect API that the environment names, if any."""
    return (os.environ.get("PREFECT_API_URL") or "").rstrip("/") or None


def given_ray_address() -> str | None:
    """The Ray cluster that the environment names, if any; one that a flow names comes first."""
    return os.environ.get("RAY_ADDRESS") or None
