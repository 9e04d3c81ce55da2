"""``rayorch-flows notify``."""

from __future__ import annotations

from rayorch_flows.cli.exit_status import OK


def notify(uri: str, /, *more: str) -> int:
    """Say that sources have arrived: the event rayorch.source.arrived, which wakes the sensor.

    Parameters
    ----------
    uri
        What has arrived.
    more
        More of it.
    """
    from rayorch_flows.orchestration.arrival.notify import notify as send

    api_url = send([uri, *more])
    print(f"{1 + len(more)} x rayorch.source.arrived sent to {api_url}")
    return OK
