"""The parameters of an ingest are described once; signatures that cannot derive from it agree with it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from pydantic_core import PydanticUndefined

from rayorch_flows import UsageError
from rayorch_flows.cli.ingest import ingest as command
from rayorch_flows.orchestration.arrival.sensor import watch_source
from rayorch_flows.orchestration.ingest.ingest_flow import ingest
from rayorch_flows.orchestration.ingest.microbatch_flow import ingest_microbatch
from rayorch_flows.orchestration.settings.call_settings import CallSettings
from rayorch_flows.orchestration.settings.ingest_parameters import IngestParameters

DEFAULTS = {
    name: inspect.Parameter.empty if field.default is PydanticUndefined else field.default
    for name, field in IngestParameters.model_fields.items()
}


def defaults(function: Callable[..., Any]) -> dict[str, Any]:
    return {name: each.default for name, each in inspect.signature(function).parameters.items()}


def test_the_flow_takes_every_parameter_with_its_default() -> None:
    assert defaults(ingest.fn) == DEFAULTS


def test_the_sensor_takes_what_an_ingest_takes_but_waits_for_files_to_settle() -> None:
    found = defaults(watch_source.fn)
    assert found.pop("settle_s") == 30.0
    assert found.items() <= DEFAULTS.items()
    assert DEFAULTS.keys() - found.keys() == {"settle_s", "limit", "max_failed", "retry"}


def test_the_command_takes_what_an_ingest_takes() -> None:
    found = defaults(command)
    assert {name: found.pop(name) for name in ("as_json", "verbose")} == {"as_json": False, "verbose": False}
    assert found.items() <= DEFAULTS.items()
    assert DEFAULTS.keys() - found.keys() == {"settle_s", "deployment"}


def test_a_microbatch_gets_what_its_flow_takes() -> None:
    handed = IngestParameters(source="inbox", table="records").microbatch_arguments("file:///records", "m")
    assert handed.keys() == defaults(ingest_microbatch.fn).keys()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"microbatch_size": 0}, "microbatch-size is 0, it must be at least 1"),
        ({"concurrency": -1}, "concurrency is -1, it must be at least 1"),
        ({"limit": 0}, "limit is 0, it must be at least 1"),
        ({"max_failed": -1}, "max-failed is -1, it must be at least 0"),
        ({"settle_s": -0.5}, "settle-s is -0.5, it must be at least 0"),
        ({"retry": "sometimes"}, "retry: Input should be"),
        ({"unheard_of": 1}, "unheard-of: Extra inputs are not permitted"),
    ],
)
def test_a_value_that_cannot_be_is_named_as_its_option(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        IngestParameters.checked(source="inbox", table="records", **values)


@pytest.mark.parametrize(
    ("table", "source", "handed_table", "handed_source"),
    [
        ("records", "inbox", "file:///records", ""),
        ("record-table/nightly", "corpus-source/inbox", "record-table/nightly", "corpus-source/inbox"),
    ],
)
def test_names_of_blocks_stay_names(table: str, source: str, handed_table: str, handed_source: str) -> None:
    asked = IngestParameters(source=source, table=table, engine={"ocr": CallSettings(replicas=4)})
    assert asked.microbatch_arguments("file:///records", "m") == {
        "table": handed_table,
        "source": handed_source,
        "flow": "pdf",
        "microbatch": "m",
        "cluster": None,
        "engine": {"ocr": {"replicas": 4}},
    }
