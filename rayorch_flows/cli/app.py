"""The command line, put together, and the way out of it: one clear message and the right exit status."""

from __future__ import annotations

import asyncio
import sys
import traceback
from typing import Any, Final

from cyclopts import App, CycloptsError, MissingArgumentError

from rayorch_flows import CompileError, RayorchFlowsError, SourceError, UsageError, __version__
from rayorch_flows.cli.blocks import register
from rayorch_flows.cli.engines import engines
from rayorch_flows.cli.exit_status import INFRASTRUCTURE, INTERRUPTED, OK, TERMINATED, USAGE
from rayorch_flows.cli.failures import failures
from rayorch_flows.cli.ingest import ingest
from rayorch_flows.cli.notify import notify
from rayorch_flows.cli.output import say
from rayorch_flows.cli.ui import ui
from rayorch_flows.command import typed

app: Final = App(
    name="rayorch-flows",
    help="Turn a corpus of documents into a table of training records, on Ray, watched in Prefect.",
    version=__version__,
    suppress_keyboard_interrupt=False,
)
blocks: Final = App(name="blocks", help="Places and settings that are kept in the Prefect server.")
app.command(blocks)
for command in (ingest, ui, failures, engines, notify):
    app.command(command)
blocks.command(register)


def main() -> None:
    """Run the command and exit with its status."""
    sys.exit(_guarded(sys.argv[1:]))


def _guarded(arguments: list[str]) -> int:
    """Every way out of a command ends in one clear message and the right exit status."""
    try:
        status: Any = app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        return say(_complaint(error), USAGE)
    except (UsageError, SourceError, CompileError) as error:
        return say(error, USAGE)
    except RayorchFlowsError as error:
        return say(error, INFRASTRUCTURE)
    except (KeyboardInterrupt, asyncio.CancelledError):
        return say("interrupted: what is finished is kept, the same command goes on from there", INTERRUPTED)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else USAGE
    except BaseException as error:
        if type(error).__name__ in ("Terminated", "TerminationSignal"):
            return say("terminated: what is finished is kept, the same command goes on from there", TERMINATED)
        if "--verbose" in arguments:
            traceback.print_exc()
        return say(f"{type(error).__name__}: {error}\n  next: run it with --verbose to see more", INFRASTRUCTURE)
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
