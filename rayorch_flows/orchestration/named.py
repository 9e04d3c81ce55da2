"""Blocks for commands: they need a Prefect server only to look one up."""

from __future__ import annotations

import asyncio

from rayorch_flows.orchestration.places import TablePlace, is_block, table_place


def named_table(table: str) -> TablePlace:
    """The place of a record table, given plainly or as record-table/NAME."""
    if not is_block(table):
        return TablePlace(table)
    from rayorch_flows.orchestration.session import session

    with session():
        return asyncio.run(table_place(table))
