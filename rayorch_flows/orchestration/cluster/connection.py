"""The Ray cluster that the flows use: the given one, or an embedded one that ends with the process that started it.

A RayTaskRunner that calls ``ray.init`` shuts Ray down under its sibling flows, so the process connects once, here,
before any task runner starts. It does so in a thread of its own that lives as long as the connection: Ray's processes
are tied to the thread that started them, and outside the main thread Ray leaves the signal handlers alone.
"""

from __future__ import annotations

import atexit
import importlib
import json
import logging
import os
import secrets
import shutil
import signal
import tempfile
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rayorch_flows.errors import InfrastructureError
from rayorch_flows.orchestration.cluster.check import expect_cluster
from rayorch_flows.orchestration.server import processes
from rayorch_flows.orchestration.server.processes import ProcessId
from rayorch_flows.orchestration.settings.home import Home, given_ray_address

if TYPE_CHECKING:
    from rayorch_flows.orchestration.settings.places import ClusterPlace

NAMESPACE: Final = "rayorch-flows"
_OBJECT_STORE_BYTES: Final = 400_000_000
_lock: Final = threading.Lock()
_connection: Connection | None = None


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """The cluster this process is connected to. ``runtime_env`` is that of actors there; on the embedded cluster they
    inherit this process's."""

    address: str
    namespace: str
    dashboard_url: str
    embedded: bool
    runtime_env: dict[str, Any] | None = None


class Connection:
    """One connection to Ray, made and ended in its own thread."""

    def __init__(self, home: Home, place: ClusterPlace | None) -> None:
        self._home = home
        self.place = place
        self._end = threading.Event()
        self._session: Path | None = None
        self._info: Future[ClusterInfo] = Future()
        self._thread = threading.Thread(target=self._main, name="ray-connection", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def info(self) -> ClusterInfo:
        return self._info.result()

    def close(self) -> None:
        atexit.unregister(self.close)
        self._end.set()
        self._thread.join(timeout=30)

    def _main(self) -> None:
        try:
            info = self._embedded() if self.place is None else self._given(self.place)
        except BaseException as error:
            self._forget_session()
            self._info.set_exception(error)
            return
        if self._session is not None:
            _write_session(self._session, json.loads(self._session.read_text()) | {"address": info.address})
        self._info.set_result(info)
        self._end.wait()
        import ray

        ray.shutdown()
        self._forget_session()

    def _embedded(self) -> ClusterInfo:
        clean_sessions(self._home)
        _set_environment(self._home)
        directory = Path(tempfile.mkdtemp(prefix="rayorch-"))
        self._session = self._home.ray_sessions / f"{os.getpid()}.json"
        _write_session(self._session, asdict(ProcessId.current()) | {"directory": str(directory)})
        return self._init(
            "",
            None,
            address="local",
            object_store_memory=_OBJECT_STORE_BYTES,
            include_dashboard=False,
            _node_ip_address="127.0.0.1",
            _temp_dir=str(directory),
        )

    def _given(self, place: ClusterPlace) -> ClusterInfo:
        """Only actors are told the way to the Prefect API: a task of Prefect's brings its settings along, and without a
        ``runtime_env`` Ray starts its worker half a second sooner."""
        _expect(place)
        own = {"runtime_env": dict(place.runtime_env)} if place.runtime_env else {}
        return self._init(place.namespace, worker_environment(place.runtime_env), address=place.address, **own)

    def _init(self, namespace: str, worker_env: dict[str, Any] | None, **options: Any) -> ClusterInfo:
        import ray

        named = namespace or NAMESPACE
        address = "" if self.place is None else self.place.address
        try:
            context: Any = ray.init(namespace=named, log_to_driver=False, logging_level=logging.ERROR, **options)
        except Exception as error:
            raise InfrastructureError(
                f"cannot use the Ray cluster at {address}: {error}"
                if address
                else f"the embedded Ray cluster did not start: {error}",
                next_step="check its address and token (a ray-cluster block, or RAY_ADDRESS, RAY_AUTH_MODE, "
                "RAY_AUTH_TOKEN_PATH)"
                if address
                else "see the logs under the directory named above",
            ) from error
        return ClusterInfo(
            address=ray.get_runtime_context().gcs_address,
            namespace=named,
            dashboard_url=f"http://{url}" if (url := getattr(context, "dashboard_url", None)) else "",
            embedded=not address,
            runtime_env=worker_env,
        )

    def _forget_session(self) -> None:
        if self._session is not None:
            _remove_session(self._session)
            self._session = None


def connect(home: Home, place: ClusterPlace | None = None) -> ClusterInfo:
    """Connect this process to Ray, once: to the given cluster, or else the environment's, or else an embedded one.

    Later calls return the same connection. One that somebody else has made is used as it is.
    """
    global _connection
    import ray

    with _lock:
        if _connection is None:
            if ray.is_initialized():
                namespace = place.namespace if place is not None and place.namespace else NAMESPACE
                return ClusterInfo(ray.get_runtime_context().gcs_address, namespace, "", embedded=False)
            connection = Connection(home, place or _environments())
            connection.info()
            _connection = connection
        elif place is not None and place != _connection.place:
            raise InfrastructureError(
                f"this process uses another Ray cluster than {place.address} already",
                next_step="run each cluster's ingests in a process of their own",
            )
        return _connection.info()


def check(place: ClusterPlace | None = None) -> None:
    """Fail if the cluster that ``connect`` would use cannot be used; start and write nothing."""
    import ray

    place = place or _environments()
    if place is not None and _connection is None and not ray.is_initialized():
        _expect(place)


def _expect(place: ClusterPlace) -> None:
    if place.token:
        _use_token("RAY_AUTH_TOKEN", place.token)
    expect_cluster(place.address)


def _environments() -> ClusterPlace | None:
    """The cluster that the environment names, if any."""
    from rayorch_flows.orchestration.settings.places import ClusterPlace

    address = given_ray_address()
    return None if address is None else ClusterPlace(address)


def current() -> ClusterInfo | None:
    """The cluster this process is connected to, if it is."""
    return None if _connection is None else _connection.info()


def namespace() -> str:
    """Where the engine hosts of this process's cluster live."""
    info = current()
    return NAMESPACE if info is None else info.namespace


def restore_sigterm() -> None:
    """Ray's core takes SIGTERM over when it connects, and aborts on it; give it back to Python. Main thread only."""
    handler = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is threading.main_thread() and handler is not None:
        signal.signal(signal.SIGTERM, handler)


def worker_environment(given: Mapping[str, Any]) -> dict[str, Any]:
    """The ``runtime_env`` of actors on a given cluster: what is given, and the way to the Prefect API."""
    names = ("PREFECT_API_URL", "PREFECT_API_KEY", "PREFECT_API_AUTH_STRING")
    variables = {name: value for name in names if (value := os.environ.get(name))}
    variables["PREFECT_SERVER_ALLOW_EPHEMERAL_MODE"] = "false"
    return {**given, "env_vars": {**variables, **given.get("env_vars", {})}}


def disconnect() -> None:
    """Leave the cluster; the embedded one ends."""
    global _connection
    with _lock:
        if _connection is not None:
            _connection.close()
            _connection = None


def clean_sessions(home: Home) -> None:
    """Remove what embedded clusters of killed processes left: their directories, and processes still tied to them."""
    for record in home.ray_sessions.glob("*.json"):
        try:
            raw = json.loads(record.read_text())
            owner = ProcessId(raw["pid"], raw["started"])
            directory = str(raw["directory"])
        except (OSError, ValueError, KeyError):
            record.unlink(missing_ok=True)
            continue
        if not owner.alive():
            for process in _processes_of(directory):
                processes.stop(process, grace_s=2.0)
            _remove_session(record)


def embedded_address(home: Home) -> str | None:
    """Where the embedded cluster of a command that runs now listens, ready to be connected to."""
    for record in home.ray_sessions.glob("*.json"):
        try:
            raw = json.loads(record.read_text())
            if ProcessId(raw["pid"], raw["started"]).alive() and raw.get("address"):
                _set_environment(home)
                return str(raw["address"])
        except (OSError, ValueError, KeyError):
            continue
    return None


def _write_session(record: Path, contents: dict[str, Any]) -> None:
    temporary = record.with_suffix(".new")
    temporary.write_text(json.dumps(contents))
    os.replace(temporary, record)


def _remove_session(record: Path) -> None:
    try:
        shutil.rmtree(json.loads(record.read_text())["directory"], ignore_errors=True)
    except (OSError, ValueError, KeyError):
        pass
    record.unlink(missing_ok=True)


def _processes_of(directory: str) -> list[ProcessId]:
    """Processes whose command line names this private directory."""
    found: list[ProcessId] = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if directory.encode() in entry.read_bytes():
                found.append(ProcessId.of(int(entry.parent.name)))
        except OSError:
            continue
    return found


def _token_file(home: Home) -> Path:
    """The embedded cluster's token, made at the first use, readable by its owner only."""
    path = home.create().ray_token
    if not path.exists():
        temporary = path.with_suffix(f".{os.getpid()}")
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
        os.replace(temporary, path)
    return path


def _set_environment(home: Home) -> None:
    """For the embedded cluster: token authentication, and what an Executor's own Ray has, too."""
    from rayorch_flows.runtime.session import free_objects_soon

    free_objects_soon()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    _use_token("RAY_AUTH_TOKEN_PATH", str(_token_file(home)))


def _use_token(variable: str, value: str) -> None:
    """Ray reads its settings when it is imported, and its token once, so tell it again."""
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        os.environ.pop(name, None)
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ[variable] = value
    raylet: Any = importlib.import_module("ray._raylet")
    raylet.Config.initialize("")
    raylet.AuthenticationTokenLoader.instance().reset_cache()
