"""``rayorch-flows engines``."""

from __future__ import annotations

from rayorch_flows.cli.exit_status import OK
from rayorch_flows.cli.output import AsJson, show


def engines(
    *,
    drain: str | None = None,
    stop: str | None = None,
    cluster: str | None = None,
    as_json: AsJson = False,
) -> int:
    """List the engine hosts of the cluster: their actors, and the microbatches that use them.

    Parameters
    ----------
    drain
        Let this host finish what it has, take nothing new, and end.
    stop
        End this host at once; what is staged is kept.
    cluster
        The Ray cluster, host:port or ray-cluster/NAME; without it RAY_ADDRESS, or that of a command that runs now.
    as_json
        Print one JSON object a line.
    """
    from rayorch_flows.cli.block_lookup import named_cluster
    from rayorch_flows.orchestration.cluster import connection
    from rayorch_flows.orchestration.cluster import engine_hosts as hosts

    place = named_cluster(cluster)
    try:
        hosts.connect_to_running(place)
        if drain is not None:
            hosts.drain(drain)
        if stop is not None:
            hosts.stop(stop)
        views = hosts.hosts()
    finally:
        connection.disconnect()
    show(hosts.hosts_text(views), views, as_json=as_json)
    return OK
