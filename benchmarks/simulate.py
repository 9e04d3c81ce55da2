"""The real machine under a virtual clock: millions of pages on thousands of simulated GPUs, one driver.

What the driver's thread does for a batch is charged to the virtual clock: the CPU time that the machine takes, measured
as it runs, and what the engine's thread takes beside it for a batch and its call, measured first on a real engine. GPUs
take one second a batch of 64, whatever its size. ``one_core_gpus`` is where a driver saturates whose other threads,
Ray's own, share that one core.
"""

from __future__ import annotations

import time

from benchmarks import workloads
from benchmarks.engine_cost import driver_cost
from benchmarks.harness import Job, Row, row
from benchmarks.virtual import IN_FLIGHT, Simulation, Site

SYSTEMS = ("rayorch_flows",)
ARMS = ("64", "256", "1024", "1500", "2048", "4096")
SCALE = 1.0

PAGES = 10_000_000
BATCH = 64
BATCH_S = 1.0
MICROBATCH = 1_000


def measure(job: Job) -> Row:
    gpus = int(job.arm)
    documents = workloads.log_normal(int(PAGES / job.scale / 27.4))
    cost = driver_cost()
    # Far more pages are active than in flight, so that queues are never short because admission is.
    active = 8 + 6 * IN_FLIGHT * gpus * BATCH * len(documents.pages) // (documents.total * MICROBATCH)
    site = Site(gpus, BATCH, lambda _: BATCH_S, MICROBATCH, active, cost.thread_s, options=job.options)
    simulation = Simulation(site, documents)
    start = time.process_time()
    wall_s = simulation.run()
    real_s = time.process_time() - start
    calls = sum(simulation.batches)
    page_batches = simulation.batches[simulation.page_module]
    per_call_s = simulation.driver_busy / calls
    return row(
        job,
        wall_s=wall_s,
        ideal_s=documents.total / BATCH * BATCH_S / gpus,
        items=documents.total,
        items_per_s=documents.total / wall_s,
        calls=calls,
        exact=simulation.terminal == len(documents.pages) and simulation.machine.idle(),
        busy=simulation.busy[simulation.page_module] / gpus / wall_s,
        fill=documents.total / page_batches / BATCH,
        driver_busy=simulation.driver_busy / wall_s,
        call_us=cost.thread_s * 1e6,
        call_all_threads_us=cost.process_s * 1e6,
        machine_us_per_batch=(per_call_s - cost.thread_s) * 1e6,
        machine_us_per_page=(per_call_s - cost.thread_s) * calls / documents.total * 1e6,
        saturates_at_gpus=BATCH_S * page_batches / simulation.driver_busy,
        one_core_gpus=BATCH_S * page_batches / (simulation.driver_busy + calls * (cost.process_s - cost.thread_s)),
        simulated_in_s=real_s,
    )
