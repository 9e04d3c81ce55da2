"""The long mode: ``python -m tests.properties --programs 100000 [--seed 0] [--processes 2]``."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
import traceback
from collections import Counter

from tests.properties.case import check, failure, seeded, shrink

CHUNK = 250


def chunk(seeds: range) -> tuple[Counter[str], list[int]]:
    """Run one program a seed; what they covered, and the seeds that failed."""
    covered: Counter[str] = Counter()
    failed: list[int] = []
    for seed in seeds:
        try:
            covered.update(check(seeded(seed)).coverage())
        except Exception:
            failed.append(seed)
    return covered, failed


def first_failure(seeds: range) -> int:
    """For the mutation check: stop at the first program that fails."""
    for seed in seeds:
        if failure(seeded(seed)) is not None:
            print(f"failed at program {seed - seeds.start + 1}: {failure(seeded(seed))}")
            return 1
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.properties", description=__doc__)
    parser.add_argument("--programs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--show", type=int, default=1, help="shrink and print so many failures")
    parser.add_argument("--first", action="store_true", help="in this process, and only up to the first failure")
    options = parser.parse_args()
    if options.first:
        return first_failure(range(options.seed, options.seed + options.programs))
    began = time.monotonic()
    covered: Counter[str] = Counter()
    failed: list[int] = []
    last = options.seed + options.programs
    work = [range(first, min(first + CHUNK, last)) for first in range(options.seed, last, CHUNK)]
    with multiprocessing.get_context("fork").Pool(options.processes) as pool:
        for done, (more, seeds) in enumerate(pool.imap_unordered(chunk, work), 1):
            covered += more
            failed += seeds
            if done % max(1, len(work) // 10) == 0:
                print(f"{done * 100 // len(work)}%, {len(failed)} failed", *failed[:20], file=sys.stderr, flush=True)
    elapsed = time.monotonic() - began
    print(f"{options.programs} programs in {elapsed:.1f} s, {len(failed)} failed", *sorted(failed)[:20])
    print(", ".join(f"{count} {what}" for what, count in sorted(covered.items())))
    for seed in sorted(failed)[: options.show]:
        kind = failure(seeded(seed))
        case = shrink(seeded(seed), lambda candidate, kind=kind: failure(candidate) == kind)
        print(f"\nseed {seed}: {case}")
        try:
            check(case)
        except Exception:
            traceback.print_exc()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
