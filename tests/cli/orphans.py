"""A script: microbatches in an engine host without flow runs, and what the reconciler makes of them.

Called with a folder of text files. Attaches ``orphan`` and ``awaited`` and leaves them alone, ``polled`` and keeps
polling it; reconciles; prints the states of the three.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from pathlib import Path
from typing import Any

from rayorch_flows.orchestration.cluster import connection as cluster
from rayorch_flows.orchestration.ingest.prepared_flow import prepare
from rayorch_flows.orchestration.server.processes import wait_until
from rayorch_flows.orchestration.settings.home import home
from rayorch_flows.orchestration.upkeep.reconciler import reconcile
from rayorch_flows.runtime.host import client as host
from tests.cli.lab import TOY


def main(folder: str) -> None:
    uris = sorted(str(path) for path in Path(folder).glob("*.txt"))
    info = cluster.connect(home())
    client = host.connect(
        prepare(TOY).plan,
        namespace=info.namespace,
        runtime_env=info.runtime_env,
        options=host.HostOptions(lease_s=10.0),
    )
    for name in ("orphan", "awaited", "polled"):
        client.attach(host.MicrobatchSpec(id=name, columns=(uris,), rows=list(range(len(uris)))))
    over = threading.Event()
    poller = threading.Thread(target=lambda: [client.poll("polled", 0.2) for _ in iter(over.is_set, True)])
    poller.start()
    states: dict[str, str] = {}

    def paused() -> bool:
        states.update(client.describe()["microbatches"])
        return states["orphan"] == states["awaited"] == "paused"

    assert wait_until(paused, 120), states
    run: Any = reconcile
    done = asyncio.run(run(silent_s=1000.0))
    states.update(client.describe()["microbatches"])
    over.set()
    poller.join()
    client.stop()
    print(json.dumps({"states": states, "cancelled": done.engine_cancelled}))


if __name__ == "__main__":
    main(sys.argv[1])
