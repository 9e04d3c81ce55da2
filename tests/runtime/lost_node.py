"""A three-node cluster that loses a node with payloads on it; run by test_nodes.py in a process of its own."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
import tempfile
import threading
import time
from typing import Any

import numpy as np
import ray
from ray.cluster_utils import Cluster

from rayorch_flows import Executor, F, Pipeline, RayModule
from rayorch_flows.runtime.engine import Engine

DOOMED = {"doomed": 1}


class Pages:
    def run(self, docs: list[int]) -> list[Any]:
        return [[np.full(300_000, page, np.uint8) for page in range(n)] for n in docs]


class Look:
    def run(self, pages: list[Any]) -> list[Any]:
        time.sleep(0.05 * len(pages))
        return [page + np.uint8(1) for page in pages]


class Sizes:
    def run(self, groups: list[list[Any]]) -> list[list[int]]:
        return [[int(page[0]) + page.nbytes for page in group] for group in groups]


class Documents(Pipeline):
    """Pages are made on the nodes that can be lost, looked at on the head node."""

    def __init__(self) -> None:
        self.pages = RayModule(Pages).ray_options(num_cpus=0, resources=DOOMED, replicas=2)
        self.look = RayModule(Look).ray_options(num_cpus=1, replicas=3, batch_size=4)
        self.sizes = RayModule(Sizes).ray_options(num_cpus=0)

    def forward(self, docs: Any) -> Any:
        return self.sizes(F.reduce(self.look(F.expand(self.pages(docs)))))


def main(folder: str) -> dict[str, Any]:
    head = {"num_cpus": 4, "object_store_memory": 200_000_000, "include_dashboard": False, "temp_dir": folder}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    restarted: list[int] = []
    restart = Engine._restart

    def counted(self: Engine, active: Any) -> None:
        restarted.append(len(active.open))
        restart(self, active)

    Engine._restart = counted
    try:
        nodes = [cluster.add_node(num_cpus=0, resources=DOOMED, object_store_memory=200_000_000) for _ in range(2)]
        ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
        with Executor(Documents()) as executor:
            executor.run([3])
            docs = [20, 5, 30, 0, 7] * 6
            threading.Timer(1.0, lambda: cluster.remove_node(nodes[0], allow_graceful=False)).start()
            outputs = executor.run(docs, input_batch_size=10, max_active_input_batches=2).outputs
        exact = outputs == [[page + 1 + 300_000 for page in range(n)] for n in docs]
        return {"exact": exact, "restarted": restarted}
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    directory = tempfile.mkdtemp(prefix="rf-", dir="/tmp")
    try:
        json.dump(main(directory), sys.stdout)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
