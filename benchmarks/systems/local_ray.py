"""A Ray for one measurement, on this machine, gone afterwards."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager

import ray


@contextmanager
def local_ray(cpus: int = 4, store_bytes: int = 600_000_000) -> Generator[None]:
    ray.init(
        address="local",
        num_cpus=cpus,
        object_store_memory=store_bytes,
        include_dashboard=False,
        log_to_driver=False,
        _temp_dir=os.environ.get("BENCHMARKS_RAY"),
    )
    try:
        yield
    finally:
        ray.shutdown()
