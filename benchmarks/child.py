"""The measured process: ``python -m benchmarks.child JOB ANSWER``, started by the harness."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from benchmarks import harness


def main() -> None:
    job = harness.Job.load(sys.argv[1])
    row = harness.benchmark_module(job.benchmark).measure(job)
    Path(sys.argv[2]).write_text(json.dumps(row))


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    # Nothing after the answer is of interest, and some libraries hang in their exit handlers.
    os._exit(0)
