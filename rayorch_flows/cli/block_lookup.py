"""Blocks for commands: they need a Prefect server only to look one up."""

from __future__ import annotations

import asyncio

from rayorch_flows.orchestration.settings.places import ClusterPlace, TablePlace, cluster_place, is_block, table_place


def named_table(table: str) -> TablePlace:
    """The place of a record table, given plainly or as record-table/NAME."""
    if not is_block(table):
        return TablePlace(table)
    from rayorch_flows.cli.session import session

    with session():
        return asyncio.run(table_place(table))


def named_cluster(cluster: str | None) -> ClusterPlace | None:
    """The place of a Ray cluster, given by its address or as ray-cluster/NAME."""
    if not is_block(cluster):
        return ClusterPlace(cluster) if cluster else None
    from rayorch_flows.cli.session import session

    with session():
        return asyncio.run(cluster_place(cluster))
