"""A lab whose commands and scripts see this project as an installed one does: with its entry points."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

from rayorch_flows.orchestration.server import prefect_server as server
from tests.cli.lab import ROOT, Lab


@dataclass
class BlockLab:
    lab: Lab

    def __post_init__(self) -> None:
        metadata = self.lab.directory / "site" / "rayorch_flows-0.0.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: rayorch-flows\nVersion: 0.0\n")
        (metadata / "entry_points.txt").write_text(_entry_points())
        self.lab.environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(metadata.parent)])

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to be a client of the lab's server."""
        place, state = self.lab.home, server.read_state(self.lab.home)
        assert state is not None
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "RAY_", "RAYORCH_"))}
        return kept | self.lab.environment | {"PREFECT_HOME": str(place.prefect), "PREFECT_API_URL": state.api_url}

    def python(self, code: str, *arguments: str, **environment: str) -> str:
        """Run code as a script; its output."""
        return self.command(sys.executable, "-c", code, *arguments, **environment)

    def command(self, *arguments: str, **environment: str) -> str:
        done = subprocess.run(
            arguments,
            env=self.environment | environment,
            cwd=self.lab.directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def forget_block_types(self, slugs: set[str]) -> None:
        """Delete Block types of the server."""
        for each in self.lab.api("block_types/filter"):
            if each["slug"] in slugs:
                self.lab.api(f"block_types/{each['id']}", method="DELETE")

    def block_types(self) -> set[str]:
        return {each["slug"] for each in self.lab.api("block_types/filter")}


def _entry_points() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = {"console_scripts": project["scripts"], **project["entry-points"]}
    return "\n".join(
        f"[{group}]\n" + "\n".join(f"{name} = {value}" for name, value in entries.items()) + "\n"
        for group, entries in groups.items()
    )


def script_path(name: str) -> str:
    return str(Path(sys.executable).with_name(name))
