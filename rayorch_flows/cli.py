"""The ``rayorch-flows`` command."""

from __future__ import annotations

import asyncio
import sys
import time
import traceback
from typing import Annotated, Any, Final

from cyclopts import App, CycloptsError, MissingArgumentError, Parameter
from rich.console import Console

from rayorch_flows import CompileError, RayorchFlowsError, SourceError, TableError, UsageError, __version__
from rayorch_flows.command import typed
from rayorch_flows.records.planning import Retry

OK: Final = 0
USAGE: Final = 2
INFRASTRUCTURE: Final = 3
INTERRUPTED: Final = 130
TERMINATED: Final = 143

app: Final = App(
    name="rayorch-flows",
    help="Turn a corpus of documents into a table of training records, on Ray, watched in Prefect.",
    version=__version__,
    suppress_keyboard_interrupt=False,
)
blocks: Final = App(name="blocks", help="Places and settings that are kept in the Prefect server.")
app.command(blocks)


@app.command
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
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
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
    from rayorch_flows.orchestration.ingest_command import run_ingest

    parameters: dict[str, Any] = {
        "source": source,
        "table": table,
        "flow": flow,
        "microbatch_size": microbatch_size,
        "concurrency": concurrency,
        "limit": limit,
        "max_failed": max_failed,
        "retry": retry,
        "cluster": cluster,
        "engine": engine,
    }
    return run_ingest(parameters, as_json=as_json, verbose=verbose)


@app.command
def ui(*, open_browser: Annotated[bool, Parameter(name="--open", negative="")] = False) -> int:
    """Show the Prefect UI over the history of all ingests, until Ctrl-C.

    Parameters
    ----------
    open_browser
        Open it in a browser too.
    """
    from rayorch_flows.orchestration.session import session

    with session() as server:
        print(f"Prefect UI: {server.ui_url}", flush=True)
        if open_browser:
            import webbrowser

            webbrowser.open(server.ui_url)
        if server.embedded:
            print("Ctrl-C ends it.", flush=True)
            while True:
                time.sleep(3600)
    return OK


@app.command
def failures(
    table: str,
    /,
    *,
    limit: int = 50,
    kind: str | None = None,
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> int:
    """List what failed: source items and children, in the latest row of every source item.

    Parameters
    ----------
    table
        The record table, a folder, a URI, or record-table/NAME.
    limit
        Show at most so many; 0 shows all.
    kind
        Only this cause kind: encrypted, corrupt, empty, ...
    as_json
        Print one JSON object a line, with the whole message.
    """
    from rayorch_flows.orchestration.failures import current_failures, failures_text
    from rayorch_flows.orchestration.named import named_table

    try:
        found = current_failures(named_table(table), kind)
    except TableError as error:
        return _say(error, USAGE)
    shown = found[:limit] if limit else found
    if as_json:
        for line in shown:
            print(line.model_dump_json())
    else:
        print(failures_text(found, shown))
    return OK


@app.command
def engines(
    *,
    drain: str | None = None,
    stop: str | None = None,
    cluster: str | None = None,
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
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
    from rayorch_flows.orchestration import cluster as clusters
    from rayorch_flows.orchestration import engines as hosts
    from rayorch_flows.orchestration.named import named_cluster

    place = named_cluster(cluster)
    try:
        hosts.connect_to_running(place)
        if drain is not None:
            hosts.drain(drain)
        if stop is not None:
            hosts.stop(stop)
        views = hosts.hosts()
    finally:
        clusters.disconnect()
    if as_json:
        for view in views:
            print(view.model_dump_json())
    else:
        print(hosts.hosts_text(views))
    return OK


@app.command
def notify(uri: str, /, *more: str) -> int:
    """Say that sources have arrived: the event rayorch.source.arrived, which wakes the sensor.

    Parameters
    ----------
    uri
        What has arrived.
    more
        More of it.
    """
    from rayorch_flows.orchestration.notify import notify as send

    api_url = send([uri, *more])
    print(f"{1 + len(more)} x rayorch.source.arrived sent to {api_url}")
    return OK


@blocks.command
def register() -> int:
    """Register the Block types with the Prefect server, so that its UI offers them."""
    from rayorch_flows.orchestration.session import session

    with session():
        from rayorch_flows.orchestration.block_types import register_block_types

        for slug in register_block_types():
            print(slug, flush=True)
    return OK


def main() -> None:
    """Run the command and exit with its status."""
    sys.exit(_guarded(sys.argv[1:]))


def _guarded(arguments: list[str]) -> int:
    """Every way out of a command ends in one clear message and the right exit status."""
    try:
        status: Any = app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        return _say(_complaint(error), USAGE)
    except (UsageError, SourceError, CompileError) as error:
        return _say(error, USAGE)
    except RayorchFlowsError as error:
        return _say(error, INFRASTRUCTURE)
    except (KeyboardInterrupt, asyncio.CancelledError):
        return _say("interrupted: what is finished is kept, the same command goes on from there", INTERRUPTED)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else USAGE
    except BaseException as error:
        if type(error).__name__ in ("Terminated", "TerminationSignal"):
            return _say("terminated: what is finished is kept, the same command goes on from there", TERMINATED)
        if "--verbose" in arguments:
            traceback.print_exc()
        return _say(f"{type(error).__name__}: {error}\n  next: run it with --verbose to see more", INFRASTRUCTURE)
    return status if isinstance(status, int) else OK


def _complaint(error: CycloptsError) -> UsageError:
    """What is wrong with the arguments, and where they are described."""
    command = " ".join(error.command_chain or ())
    argument = error.argument
    given = argument is None or argument.tokens
    if isinstance(error, MissingArgumentError) and argument is not None and not given and error.keyword is None:
        unknown = [token for token in error.unused_tokens or () if token.startswith("-")]
        message = f"{command} needs {argument.name}"
        message += f", and does not know {' '.join(unknown)}" if unknown else ""
    else:
        message = str(error)
    return UsageError(message.strip(), next_step=typed(f"{command} --help".strip()))


def _say(message: object, status: int) -> int:
    Console(stderr=True, highlight=False).print(f"rayorch-flows: {message}", markup=False, soft_wrap=True)
    return status


if __name__ == "__main__":
    main()
