"""``rayorch-flows failures``."""

from __future__ import annotations

from rayorch_flows.cli.exit_status import OK, USAGE
from rayorch_flows.cli.output import AsJson, say, show
from rayorch_flows.errors import TableError


def failures(
    table: str,
    /,
    *,
    limit: int = 50,
    kind: str | None = None,
    as_json: AsJson = False,
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
    from rayorch_flows.cli.block_lookup import named_table
    from rayorch_flows.orchestration.reporting.failures import current_failures, failures_text

    try:
        found = current_failures(named_table(table), kind)
    except TableError as error:
        return say(error, USAGE)
    shown = found[:limit] if limit else found
    show(failures_text(found, shown), shown, as_json=as_json)
    return OK
