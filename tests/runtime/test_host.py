"""The engine host on a real local Ray: attach, join, leases, drain, and a host that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import ray

from rayorch_flows import CauseKind, InfrastructureError, ItemOutcome, Pipeline, Plan, RayModule, SourceOutcome
from rayorch_flows.runtime.host import client as host
from rayorch_flows.runtime.host.actor import EngineHost
from rayorch_flows.runtime.host.client import HostClient, HostOptions, MicrobatchProgress, MicrobatchSpec
from rayorch_flows.runtime.host.writer import WRITE_ATTEMPTS
from tests.runtime.functions import CPU, Documents, Gated, Poison, Slow, wait_for

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]


ENDLESS = 40_000
"""Pages that take ``slow_documents`` minutes."""


class Lines:
    """A sink that appends a line for each outcome, and a letter to ``tries`` for each write that begins. ``gate``: it
    waits for that file. ``broken``: it fails. ``held``: what it says it holds."""

    def __init__(self, path: Path, *, gate: Path | None = None, broken: bool = False, held: Sequence[int] = ()) -> None:
        self.path = path
        self.tries = path.with_suffix(".tries")
        self.held = held
        self.gate = gate
        self.broken = broken

    def write(self, microbatch: str, attempt: int, outcomes: Sequence[SourceOutcome]) -> None:
        with self.tries.open("a") as file:
            file.write("x")
        if self.gate is not None:
            wait_for(self.gate.exists, 300)
        if self.broken:
            raise OSError("disk full")
        with self.path.open("a") as file:
            file.writelines(f"{microbatch} {attempt} {o.index} {o.outcome} {o.value}\n" for o in outcomes)

    def done(self, microbatch: str) -> frozenset[int]:
        return frozenset(self.held)

    def flush(self, microbatch: str) -> None:
        with self.path.open("a") as file:
            file.write(f"{microbatch} flushed\n")

    def close(self, microbatch: str) -> None:
        pass


@pytest.fixture
def connect() -> Iterator[Callable[..., HostClient]]:
    """Makes clients in a namespace of the test's own; their hosts are stopped at the end."""
    namespace = f"test-{uuid.uuid4().hex[:8]}"
    clients: list[HostClient] = []

    def make(pipeline: Pipeline | Plan, **options: Any) -> HostClient:
        plan = pipeline if isinstance(pipeline, Plan) else pipeline.compile()
        client = host.connect(plan, namespace=namespace, options=HostOptions(**options) if options else None)
        clients.append(client)
        return client

    yield make
    for name in {client.name: client for client in clients}:
        next(client for client in clients if client.name == name).stop()


def slow_documents(seconds: float = 0.02, **options: Any) -> Documents:
    return Documents(RayModule(Slow).pre_init(seconds).ray_options(batch_size=4, **CPU, **options))


def gated_documents(gate: Path, least: int = 0) -> Documents:
    """Pages of number ``least`` and more wait for the file ``gate``."""
    return Documents(RayModule(Gated).pre_init(gate, least).ray_options(batch_size=4, **CPU))


def wait(client: HostClient, microbatch: str, timeout_s: float = 120.0) -> MicrobatchProgress:
    until = time.monotonic() + timeout_s
    while True:
        progress = client.poll(microbatch, 0.5)
        if progress.state in host.FINAL_STATES:
            return progress
        assert time.monotonic() < until, progress


def wait_until_gone(pids: list[int]) -> None:
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


def wait_for_actors(client: HostClient, microbatch: str, modules: set[str]) -> dict[str, Any]:
    """The host's description once it has the actors of these modules and no others, all of them ready."""

    def there() -> bool:
        client.poll(microbatch, 0.1)
        actors = client.describe()["actors"]
        return {actor["module"] for actor in actors} == modules and all(actor["ready"] for actor in actors)

    wait_for(there)
    return client.describe()


def not_polled_for_long(actor: EngineHost, microbatch: str) -> None:
    """Executed in the host: as if nobody had polled the microbatch for an hour."""
    actor._held[microbatch].polled -= 3600  # pyright: ignore[reportPrivateUsage]


def test_two_microbatches_at_once_each_with_its_sink(connect: Callable[..., HostClient], tmp_path: Path) -> None:
    client = connect(slow_documents())
    gate = tmp_path / "gate"
    one, two = Lines(tmp_path / "one", gate=gate), Lines(tmp_path / "two")
    assert client.attach(MicrobatchSpec("a", ([3, -4, 60],), [7, 8, 9], one)).attempt == 1
    assert not client.attach(MicrobatchSpec("b", ([2, 0],), [0, 1], two)).joined
    assert client.attach(MicrobatchSpec("a", ([3, 60],), [7, 9], one)).joined
    gate.touch()
    b = wait(client, "b")
    a = wait(client, "a")
    assert sorted((tmp_path / "one").read_text().splitlines()) == [
        "a 1 7 present 6",
        "a 1 8 suppressed None",
        "a 1 9 present 1830",
        "a flushed",
    ]
    assert sorted((tmp_path / "two").read_text().splitlines()) == ["b 1 0 present 3", "b 1 1 present 0", "b flushed"]
    assert (a.state, a.sources_total, a.sources_done, a.sources_failed, a.children_done) == ("done", 3, 3, 1, 63)
    assert (a.written, a.error) == (3, None)
    assert a.outcomes["suppressed"] == 1
    [(index, cause)] = a.failures_sample
    assert (index, cause.message) == (8, "negative: -4")
    assert (b.state, b.children_done) == ("done", 2)
    middle = next(call for call in a.calls if call.call == "middle")
    assert middle.grains == 63
    assert client.describe()["microbatches"] == {"a": "done", "b": "done"}
    again = client.attach(MicrobatchSpec("b", ([1],), [1], two))
    assert (again.attempt, again.joined) == (2, False)
    assert wait(client, "b").sources_total == 1


def test_many_connect_at_once_and_get_one_host(connect: Callable[..., HostClient]) -> None:
    plan = slow_documents().compile()
    found: list[int] = []
    lock = threading.Lock()

    def one() -> None:
        pid = connect(plan).describe()["pid"]
        with lock:
            found.append(pid)

    threads = [threading.Thread(target=one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1


def test_an_abort_is_told_and_another_attempt_starts(connect: Callable[..., HostClient], tmp_path: Path) -> None:
    client = connect(Documents(RayModule(Poison).pre_init(5, "raise", str(tmp_path / "once")).ray_options(**CPU)))
    spec = MicrobatchSpec("a", ([2, 9],), [0, 1], Lines(tmp_path / "out"))
    client.attach(spec)
    progress = wait(client, "a")
    assert progress.state == "aborted"
    assert progress.error is not None
    assert (progress.error.call, progress.error.kind) == ("middle", CauseKind.FUNCTION_ERROR)
    assert progress.error.message == "ValueError: poison 5"
    assert client.attach(spec).attempt == 2
    assert wait(client, "a").state == "done"
    assert (tmp_path / "out").read_text().count("a 2 ") == 2


def test_cancel(connect: Callable[..., HostClient], tmp_path: Path) -> None:
    client = connect(slow_documents())
    client.attach(MicrobatchSpec("a", ([1, ENDLESS],), [0, 1], Lines(tmp_path / "out")))
    wait_for(lambda: client.poll("a", 0.1).written)
    assert client.cancel("a")
    progress = wait(client, "a")
    assert (progress.state, progress.sources_done) == ("cancelled", 1)
    assert not client.cancel("a")
    client.attach(MicrobatchSpec("b", ([2],), [0]))
    assert wait(client, "b").outcomes["present"] == 1
    assert "a 1 0 present 1" in (tmp_path / "out").read_text()


def test_a_microbatch_that_nobody_polls_is_paused_then_evicted(connect: Callable[..., HostClient]) -> None:
    client = connect(slow_documents(), lease_s=0.6, evict_s=600.0)
    client.attach(MicrobatchSpec("a", ([ENDLESS],), [0]))
    wait_for(lambda: client.describe()["microbatches"]["a"] == "paused")
    assert client.poll("a", 0.0).state == "running"
    client.attach(MicrobatchSpec("b", ([ENDLESS],), [0]))
    ray.get(client._handle.__ray_call__.remote(not_polled_for_long, "b"))  # pyright: ignore[reportPrivateUsage]
    wait_for(lambda: client.describe()["microbatches"]["b"] == "cancelled")
    assert client.poll("a", 0.0).state == "running"
    with pytest.raises(host.UnknownMicrobatchError, match="does not know microbatch c"):
        client.poll("c")


def test_a_slow_sink_holds_nothing_up_but_done(connect: Callable[..., HostClient], tmp_path: Path) -> None:
    client = connect(slow_documents())
    gate = tmp_path / "gate"
    slow = Lines(tmp_path / "a", gate=gate)
    client.attach(MicrobatchSpec("a", ([1, 1],), [0, 1], slow))
    wait_for(slow.tries.exists)
    client.attach(MicrobatchSpec("b", ([1],), [0], Lines(tmp_path / "b")))
    assert wait(client, "b").state == "done"
    assert not slow.path.exists()
    assert client.poll("a", 0.0).state == "running"
    gate.touch()
    assert wait(client, "a").written == 2


def test_a_broken_sink_is_tried_again_and_aborts_at_last(connect: Callable[..., HostClient], tmp_path: Path) -> None:
    client = connect(slow_documents())
    sink = Lines(tmp_path / "out", broken=True)
    client.attach(MicrobatchSpec("a", ([1],), [0], sink))
    progress = wait(client, "a")
    assert progress.state == "aborted"
    assert progress.error is not None
    assert "disk full" in progress.error.message
    assert progress.written == 0
    assert len(sink.tries.read_text()) == WRITE_ATTEMPTS > 1


def test_idle_actors_are_given_back_and_come_again(connect: Callable[..., HostClient], tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    client = connect(gated_documents(gate), idle_s=0.5)
    client.attach(MicrobatchSpec("a", ([2],), [0]))
    actors = wait_for_actors(client, "a", {"pages", "middle", "total"})["actors"]
    gate.touch()
    wait(client, "a")
    wait_until_gone([actor["pid"] for actor in actors])
    assert client.describe()["actors"] == []
    client.attach(MicrobatchSpec("b", ([2],), [0]))
    assert wait(client, "b").state == "done"


def test_a_draining_host_finishes_and_ends(connect: Callable[..., HostClient], tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    client = connect(gated_documents(gate), lease_s=300)
    client.attach(MicrobatchSpec("a", ([40],), [0], Lines(tmp_path / "out")))
    description = wait_for_actors(client, "a", {"pages", "middle", "total"})
    client.drain()
    with pytest.raises(InfrastructureError, match="draining"):
        client.attach(MicrobatchSpec("b", ([1],), [0]))
    wait_for_actors(client, "a", {"middle", "total"})
    gate.touch()
    wait_until_gone([description["pid"], *(actor["pid"] for actor in description["actors"])])
    assert (tmp_path / "out").read_text().splitlines() == ["a 1 0 present 820", "a flushed"]
    wait_for(lambda: host.list_hosts(client.namespace) == [])


def test_a_killed_host_leaves_no_actor_and_starts_empty(connect: Callable[..., HostClient], tmp_path: Path) -> None:
    client = connect(slow_documents())
    client.attach(MicrobatchSpec("a", ([1, ENDLESS],), [0, 1], Lines(tmp_path / "out")))
    wait_for(lambda: client.poll("a", 0.1).written)
    description = client.describe()
    actors = [actor["pid"] for actor in description["actors"]]
    assert len(actors) == 3
    os.kill(description["pid"], signal.SIGKILL)
    with pytest.raises(host.UnknownMicrobatchError, match="restarted"):
        wait(client, "a")
    wait_until_gone(actors)
    attached = client.attach(MicrobatchSpec("a", ([5],), [1], Lines(tmp_path / "out")))
    assert not attached.joined
    assert wait(client, "a").state == "done"
    assert client.describe()["pid"] != description["pid"]
    lines = (tmp_path / "out").read_text().splitlines()
    assert lines == ["a 1 0 present 1", "a 1 1 present 15", "a flushed"]


def test_a_grain_that_kills_its_actor_is_a_row_and_not_the_end(
    connect: Callable[..., HostClient], tmp_path: Path
) -> None:
    client = connect(Documents(RayModule(Poison).pre_init(3, "kill").ray_options(**CPU)))
    client.attach(MicrobatchSpec("a", ([2, 6, 3],), [0, 1, 2], Lines(tmp_path / "out")))
    progress = wait(client, "a")
    assert progress.state == "done"
    assert progress.outcomes[ItemOutcome.SUPPRESSED.value] == 1
    [(index, cause)] = progress.failures_sample
    assert (index, cause.kind, cause.ordinals) == (1, CauseKind.WORKER_CRASH, (3,))


@pytest.mark.slow
def test_a_host_outlives_the_process_that_made_it(
    ray_cluster: str, connect: Callable[..., HostClient], tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    client = connect(gated_documents(gate, 100))
    name, namespace = client.name, client.namespace
    client.stop()
    script = textwrap.dedent(f"""
        import os, ray
        from tests.runtime.test_host import gated_documents, MicrobatchSpec, Lines, host, Path
        ray.init(address={ray_cluster!r}, log_to_driver=False, logging_level="ERROR")
        client = host.connect(gated_documents(Path({str(gate)!r}), 100).compile(), namespace={namespace!r})
        spec = MicrobatchSpec("a", ([1, 300],), [0, 1], Lines(Path({str(tmp_path / "out")!r})))
        print(client.name, client.attach(spec), flush=True)
        while client.poll("a", 0.1).written == 0: pass
        os.kill(os.getpid(), 9)
        """)
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    assert name in done.stdout, done.stderr
    client = connect(gated_documents(gate, 100))
    attached = client.attach(MicrobatchSpec("a", ([300],), [1], Lines(tmp_path / "other")))
    assert (attached.attempt, attached.joined) == (1, True)
    gate.touch()
    assert wait(client, "a").sources_done == 2
    assert (tmp_path / "out").read_text().splitlines() == ["a 1 0 present 1", "a 1 1 present 45150", "a flushed"]
    assert not (tmp_path / "other").exists()


def test_a_host_whose_functions_cannot_be_imported_says_so(
    connect: Callable[..., HostClient], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here.py").write_text("class Here:\n    def run(self, values): return values\n")
    monkeypatch.syspath_prepend(tmp_path)
    import only_here  # type: ignore[import-not-found]

    client = connect(Documents(RayModule(only_here.Here).ray_options(**CPU)))
    with pytest.raises(InfrastructureError, match=r"(?s)cannot be made: .*only_here"):  # tried once, unlike a lost host
        client.attach(MicrobatchSpec("a", ([1],), [0]))


def test_what_was_finished_after_an_attempt_was_planned_is_not_done_again(
    connect: Callable[..., HostClient], tmp_path: Path
) -> None:
    client = connect(slow_documents())
    out = tmp_path / "out"
    client.attach(MicrobatchSpec("a", ([3, 4, 5],), [7, 8, 9], Lines(out, held=[7, 9])))
    progress = wait(client, "a")
    assert (progress.state, progress.written) == ("done", 1)
    assert out.read_text().splitlines() == ["a 1 8 present 10", "a flushed"]
    client.attach(MicrobatchSpec("a", ([4],), [8], Lines(out, held=[7, 8, 9])))
    assert wait(client, "a").state == "done"
    assert out.read_text().count("present") == 1
