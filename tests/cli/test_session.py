from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from rayorch_flows import InfrastructureError
from rayorch_flows.cli.session import session
from rayorch_flows.orchestration.server import prefect_server
from rayorch_flows.orchestration.server.prefect_server import Server


class StatusError(Exception):
    """As the errors of Prefect's client."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.response = SimpleNamespace(status_code=status)


@pytest.fixture(autouse=True)
def _a_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAYORCH_FLOWS_HOME", str(tmp_path))
    monkeypatch.setattr(prefect_server, "claim", lambda home: Server("http://far:4200/api", embedded=False))
    monkeypatch.setattr(prefect_server, "client_environment", lambda home, server: {})
    monkeypatch.setattr(prefect_server, "wait_answer", lambda home, server: None)


@pytest.mark.parametrize("status", [401, 403])
def test_a_server_that_wants_other_credentials_is_told_clearly(status: int) -> None:
    message = r"http://far:4200/api does not accept[\s\S]*PREFECT_API_AUTH_STRING"
    with pytest.raises(InfrastructureError, match=message), session(verbose=True):
        raise StatusError(status)


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(StatusError), session(verbose=True):
        raise StatusError(500)
