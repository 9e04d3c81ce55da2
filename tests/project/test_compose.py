"""The compose file of the Prefect server: pinned, healthy, closed, and what the documents say of it is so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deployments"
TEXT = (FOLDER / "compose.yaml").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
EXAMPLE = (FOLDER / "env.example").read_text()
DOCS = (ROOT / "docs" / "prefect.md").read_text()


def test_there_is_a_server_and_its_database() -> None:
    assert set(SERVICES) == {"postgres", "prefect"}
    assert SERVICES["prefect"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    assert set(COMPOSE["volumes"]) == {"postgres", "leases"}
    assert SERVICES["postgres"]["volumes"] == ["postgres:/var/lib/postgresql/data"]


@pytest.mark.parametrize("name", SERVICES)
def test_each_is_pinned_checked_and_started_again(name: str) -> None:
    service = SERVICES[name]
    assert re.fullmatch(r"[a-z/]+:\d+\.\d[\w.-]*", service["image"])
    assert {"test", "interval", "timeout", "retries"} == set(service["healthcheck"])
    assert service["restart"] == "unless-stopped"


def test_the_servers_version_is_ours() -> None:
    version = re.search(r":([\d.]+)-", SERVICES["prefect"]["image"])
    assert version
    for constraints in (ROOT / "constraints").glob("*.txt"):
        assert f"prefect=={version[1]}" in constraints.read_text().splitlines()


def test_only_this_machine_reaches_it() -> None:
    assert SERVICES["prefect"]["ports"] == ["${LISTEN_ADDRESS:-127.0.0.1}:4200:4200"]
    assert "ports" not in SERVICES["postgres"]


def test_no_password_stands_in_it() -> None:
    given = {name: value for service in SERVICES.values() for name, value in service["environment"].items()}
    secrets = {name: value for name, value in given.items() if "PASSWORD" in name}
    assert len(secrets) == 2
    assert all(re.fullmatch(r"\$\{POSTGRES_PASSWORD:\?[^}]+\}", value) for value in secrets.values())
    assert "/deployments/.env" in (ROOT / ".gitignore").read_text().splitlines()
    assert "POSTGRES_PASSWORD=''" in EXAMPLE.splitlines()


def test_what_it_asks_for_stands_in_the_example() -> None:
    offered = set(re.findall(r"^#?(\w+)=", EXAMPLE, re.MULTILINE))
    assert set(re.findall(r"\$\{(\w+)", TEXT)) <= offered
    assert all(name in DOCS for name in offered)


def test_its_settings_lead_prefect_to_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefect puts the connection together, whatever stands in the password."""
    from prefect.settings.context import temporary_settings
    from prefect.settings.models.root import Settings

    database, server = SERVICES["postgres"]["environment"], SERVICES["prefect"]["environment"]
    assert server["PREFECT_SERVER_DATABASE_HOST"] == "postgres"
    for name in ("USER", "PASSWORD"):
        assert server[f"PREFECT_SERVER_DATABASE_{name}"] == database[f"POSTGRES_{name}"]
    assert server["PREFECT_SERVER_DATABASE_NAME"] == database["POSTGRES_DB"]
    for name, value in server.items():
        monkeypatch.setenv(name, "p@ss/w:rd" if "PASSWORD" in name else value)
    with temporary_settings():
        url = Settings().server.database.connection_url
    assert url
    assert url.get_secret_value() == "postgresql+asyncpg://prefect:p%40ss%2Fw%3Ard@postgres:5432/prefect"


def test_the_documents_say_how_to_start_it() -> None:
    for command in ("cp deployments/env.example deployments/.env", "docker compose --file deployments/compose.yaml up"):
        assert command in DOCS
        assert command in TEXT
