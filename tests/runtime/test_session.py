"""Which Ray an Executor starts or joins, and how."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any

import pytest
import ray

from rayorch_flows.runtime.session import RaySession

FREES = "RAY_free_objects_period_milliseconds"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Generator[list[tuple[str, str | None]]]:
    """Addresses that Ray was started or joined at, each with how often released objects are freed."""
    seen: list[tuple[str, str | None]] = []

    def init(*, address: str, **_: Any) -> None:
        seen.append((address, os.environ.get(FREES)))

    monkeypatch.delenv(FREES, raising=False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    yield seen
    os.environ.pop(FREES, None)


def test_a_ray_of_our_own_frees_objects_soon(started: list[tuple[str, str | None]]) -> None:
    RaySession().close()
    assert started == [("local", "100")]


def test_what_the_user_has_set_stays(started: list[tuple[str, str | None]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FREES, "500")
    RaySession().close()
    assert started == [("local", "500")]


def test_a_cluster_that_is_joined_is_left_as_it_is(started: list[tuple[str, str | None]]) -> None:
    RaySession("10.0.0.1:6379").close()
    assert started == [("10.0.0.1:6379", None)]
