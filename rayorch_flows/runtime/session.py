"""Which Ray an Executor runs on, and who shuts it down."""

from __future__ import annotations

import logging
import os
import threading
from typing import Any

import ray

from rayorch_flows.errors import InfrastructureError

_lock = threading.Lock()
_users = 0
_ours = False


class RaySession:
    """A share in this process's Ray connection.

    Ray that is initialised already is used and left alone. Else ``address`` (or RAY_ADDRESS) names a cluster to join,
    and without one a private local Ray is started: never is a cluster joined that nobody named. The last session to
    close ends a connection that a session made.
    """

    def __init__(self, address: str | None = None, init_kwargs: dict[str, Any] | None = None) -> None:
        global _users, _ours
        self._open = True
        with _lock:
            if not ray.is_initialized():
                _connect(address, dict(init_kwargs or {}))
                _users, _ours = 0, True
            _users += 1

    def close(self) -> None:
        global _users, _ours
        with _lock:
            if not self._open:
                return
            self._open = False
            _users -= 1
            if _users == 0 and _ours:
                _ours = False
                ray.shutdown()
                _show_ray_messages(True)


def _connect(address: str | None, kwargs: dict[str, Any]) -> None:
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else ray.init warns of a change to come
    target = address or kwargs.pop("address", None) or os.environ.get("RAY_ADDRESS") or "local"
    kwargs.setdefault("logging_level", logging.ERROR)
    kwargs.setdefault("log_to_driver", False)
    if target == "local":
        kwargs.setdefault("include_dashboard", False)
        free_objects_soon()
    _show_ray_messages(bool(kwargs["log_to_driver"]))
    try:
        ray.init(address=target, **kwargs)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise InfrastructureError(
            f"no Ray at {target!r}: {error}",
            next_step="start a cluster there, or leave the address out to run on this machine alone",
        ) from error


def free_objects_soon() -> None:
    """Have a Ray that this process starts free released objects ten times a second. Ray's default, once a second, adds
    all that is released in a second to what a byte budget allows. Ray's processes read it in their environment."""
    os.environ.setdefault("RAY_free_objects_period_milliseconds", "100")


def _show_ray_messages(shown: bool) -> None:
    """Whether Ray prints the raylet's messages (a paragraph for each dead worker) whatever ``log_to_driver`` says.
    The engine logs a line for each actor that it loses."""
    try:
        ray._private.worker._worker_logs_enabled = shown  # pyright: ignore
    except AttributeError:
        pass
