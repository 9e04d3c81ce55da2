"""Saying that something has arrived: the event ``rayorch.source.arrived``, which wakes the sensor."""

from __future__ import annotations

import json
import os
import urllib.request
import uuid
from datetime import UTC, datetime
from typing import Any, Final

from rayorch_flows.command import typed
from rayorch_flows.errors import InfrastructureError
from rayorch_flows.orchestration.server import prefect_server
from rayorch_flows.orchestration.settings.home import ANSWER_TIMEOUT_S, given_api_url, home

SOURCE_ARRIVED: Final = "rayorch.source.arrived"


def arrived_event(uri: str) -> dict[str, Any]:
    """The event as ``POST /api/events`` takes it, in a list."""
    return {
        "id": str(uuid.uuid4()),
        "occurred": datetime.now(UTC).isoformat(),
        "event": SOURCE_ARRIVED,
        "resource": {"prefect.resource.id": f"rayorch.source.{uri}", "prefect.resource.name": uri},
        "payload": {"uri": uri},
    }


def notify(uris: list[str]) -> str:
    """Send one event a URI; return the API it went to."""
    state = prefect_server.read_state(home())
    given = given_api_url()
    if given is None and (state is None or not state.process.alive()):
        raise InfrastructureError(
            "there is no Prefect server to notify", next_step="set PREFECT_API_URL, or start one: " + typed("ui")
        )
    api_url = given or (state.api_url if state is not None else "")
    request = urllib.request.Request(
        f"{api_url}/events",
        data=json.dumps([arrived_event(uri) for uri in uris]).encode(),
        headers={"content-type": "application/json"} | _authorization(),
    )
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_TIMEOUT_S):
            return api_url
    except (OSError, ValueError) as error:
        raise InfrastructureError(
            f"the Prefect server at {api_url} does not take the event: {error}",
            next_step="start it, or correct PREFECT_API_URL",
        ) from error


def _authorization() -> dict[str, str]:
    if key := os.environ.get("PREFECT_API_KEY"):
        return {"authorization": f"Bearer {key}"}
    if text := os.environ.get("PREFECT_API_AUTH_STRING"):
        import base64

        return {"authorization": "Basic " + base64.b64encode(text.encode()).decode()}
    return {}
