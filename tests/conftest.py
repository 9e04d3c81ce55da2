"""Fixtures that several rooms share."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[str]:
    """One local Ray for all tests marked ``ray``: its address. Shut down also if a test fails."""
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    assert not ray.is_initialized(), "a test before this one left its Ray running"
    folder = tempfile.mkdtemp(prefix="rf-", dir="/tmp")  # short: Ray's sockets have 107 characters
    try:
        ray.init(
            address="local",
            num_cpus=8,
            include_dashboard=False,
            object_store_memory=400_000_000,
            log_to_driver=False,
            logging_level=logging.ERROR,
            _temp_dir=folder,
        )
        yield ray.get_runtime_context().gcs_address
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
