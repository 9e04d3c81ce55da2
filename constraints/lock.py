"""Resolve the project with every extra and write the constraints file of the running Python."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
EXTRAS = "test,rapidocr,torch,vlm,bench"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        command += ["--report", str(report), f"{HERE.parent}[{EXTRAS}]"]
        subprocess.run(command, check=True)
        installed = json.loads(report.read_text())["install"]
    pins = {
        # A local build tag ("+cpu") names one build of a version, not a version: it stays out of the pin.
        item["metadata"]["name"].lower().replace("_", "-"): item["metadata"]["version"].split("+")[0]
        for item in installed
    }
    del pins["rayorch-flows"]
    target = HERE / f"py{sys.version_info.major}{sys.version_info.minor}.txt"
    target.write_text("".join(f"{name}=={version}\n" for name, version in sorted(pins.items())))
    print(f"{target.relative_to(HERE.parent)}: {len(pins)} pins")


if __name__ == "__main__":
    main()
