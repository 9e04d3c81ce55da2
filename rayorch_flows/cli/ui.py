"""``rayorch-flows ui``."""

from __future__ import annotations

import time
from typing import Annotated

from cyclopts import Parameter

from rayorch_flows.cli.exit_status import OK


def ui(*, open_browser: Annotated[bool, Parameter(name="--open", negative="")] = False) -> int:
    """Show the Prefect UI over the history of all ingests, until Ctrl-C.

    Parameters
    ----------
    open_browser
        Open it in a browser too.
    """
    from rayorch_flows.cli.session import session

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
