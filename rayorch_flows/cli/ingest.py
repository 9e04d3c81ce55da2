"""``rayorch-flows ingest``."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from rayorch_flows.cli.output import AsJson
from rayorch_flows.records.planning import Retry


def ingest(
    source: str,
    /,
    *,
    table: str,
    flow: str = "pdf",
    microbatch_size: int = 32,
    concurrency: int = 2,
    limit: int | None = None,
    max_failed: int | None = None,
    retry: Retry = Retry.NONE,
    cluster: str | None = None,
    engine: str | None = None,
    as_json: AsJson = False,
    verbose: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Ingest a folder, a glob or a URI into a record table; what is there already is left alone.

    Exit status: 0 every source is accounted for and the error budget holds, 1 the budget is exceeded, 2 the command
    was used wrongly, 3 the infrastructure gave up (run it again: finished work is kept).

    Parameters
    ----------
    source
        A folder, a glob, a file, a URI that fsspec understands, or corpus-source/NAME.
    table
        The record table, a folder, a URI, or record-table/NAME; it is made if it is not there.
    flow
        The flow, by the name of an installed one or as path.py:NAME.
    microbatch_size
        The most source items that go into one microbatch, which is one flow run.
    concurrency
        How many microbatches run at once.
    limit
        Ingest at most so many source items now.
    max_failed
        The error budget: how many source items may fail.
    retry
        Which failed rows of the table to try again.
    cluster
        The Ray cluster, host:port or ray-cluster/NAME; without it RAY_ADDRESS, or one that ends with the command.
    engine
        How the flow's Calls run, engine-settings/NAME.
    as_json
        Print the summary as JSON on the last line.
    verbose
        Show Prefect's own log lines too.
    """
    from rayorch_flows.cli.run_ingest import run_ingest
    from rayorch_flows.orchestration.settings.ingest_parameters import IngestParameters

    asked = IngestParameters.checked(
        source=source,
        table=table,
        flow=flow,
        microbatch_size=microbatch_size,
        concurrency=concurrency,
        limit=limit,
        max_failed=max_failed,
        retry=retry,
        cluster=cluster,
        engine=engine,
    )
    return run_ingest(asked, as_json=as_json, verbose=verbose)
