"""What a dispatch batch costs the driver beside the machine: the request, Ray's call, the reply, the delivery."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from benchmarks import functions
from benchmarks.systems.lineage import pages_pipeline
from benchmarks.systems.local_ray import local_ray
from rayorch_flows import Executor, RayModule
from rayorch_flows.lineage.machine import Machine
from rayorch_flows.runtime import pool

BATCH = 64
PAGES = 120
DOCUMENTS = 1_500


@dataclass(frozen=True)
class DriverCost:
    """CPU seconds a dispatch batch: of the engine's thread, and of all threads of its process, the machine's taken
    off. What the other threads do is mostly Ray's C++, which runs beside Python on another core."""

    thread_s: float
    process_s: float


def driver_cost() -> DriverCost:
    """Measured on a real engine that four actors which do nothing keep busy, with a call for each dispatch batch: those
    of a model are too long to share one."""
    split = RayModule(functions.Split).ray_options(batch_size=4, num_cpus=0)
    page = RayModule(functions.TrivialPage).ray_options(replicas=4, batch_size=BATCH, num_cpus=0)
    pipeline = pages_pipeline("rayorch_flows", page, split=split, gather=None)
    documents = [(number, PAGES) for number in range(DOCUMENTS)]
    alone = patch.object(pool, "batches_per_call", return_value=1)
    with alone, local_ray(), Executor(pipeline) as executor:
        executor.run(documents[:200])
        engine = executor._engine  # pyright: ignore[reportPrivateUsage]
        in_machine = _time_spent(engine._traffic.machine)  # pyright: ignore[reportPrivateUsage]
        clock = time.pthread_getcpuclockid(engine._thread.ident or 0)  # pyright: ignore[reportPrivateUsage]
        thread_s, process_s = time.clock_gettime(clock), time.process_time()
        batches = executor.run(documents).rpc_count
        thread_s, process_s = time.clock_gettime(clock) - thread_s, time.process_time() - process_s
    machine_s = in_machine()
    return DriverCost((thread_s - machine_s) / batches, (process_s - machine_s) / batches)


def _time_spent(machine: Machine) -> Callable[[], float]:
    """Watch what an engine asks of its machine; the answer tells the CPU seconds so far."""
    spent = 0

    def watched(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal spent
            start = time.thread_time_ns()
            try:
                return method(*args, **kwargs)
            finally:
                spent += time.thread_time_ns() - start

        return call

    for name in ("admit", "reserve", "commit", "taken", "learn", "instructions", "result", "ready", "counts"):
        setattr(machine, name, watched(getattr(machine, name)))
    return lambda: spent / 1e9
