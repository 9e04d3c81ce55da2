from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path

import cloudpickle
import pyarrow as pa
import pytest

from rayorch_flows import UsageError
from rayorch_flows.orchestration.ingest import flow_definition
from rayorch_flows.orchestration.ingest.flow_definition import FlowDefinition, load_flow
from rayorch_flows.orchestration.ingest.prepared_flow import prepare

TOY = f"{Path(__file__).parents[1].joinpath('toy_flow.py')}:FLOW"


def test_by_path() -> None:
    assert load_flow(TOY).name == "toy"


def test_by_the_name_of_an_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("toy", "tests.orchestration.toy_flow:FLOW", flow_definition.ENTRY_POINT_GROUP)
    monkeypatch.setattr(flow_definition, "entry_points", lambda group: [entry])
    assert load_flow("toy").patterns == ("*.txt",)
    with pytest.raises(UsageError, match=r"no flow named 'pdf'[\s\S]*use one of toy"):
        load_flow("pdf")


def test_a_file_that_fails_to_import_is_not_remembered(tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text("raise ValueError('on import')")
    for _ in range(2):
        with pytest.raises(ValueError, match="on import"):
            load_flow(f"{file}:FLOW")


@pytest.mark.parametrize("name", ["", "Pdf", "a b", "../x"])
def test_names_are_plain(name: str) -> None:
    with pytest.raises(UsageError, match="small letters"):
        FlowDefinition(name, lambda: None, pa.schema([]), ("*",))  # type: ignore[arg-type,return-value]


def test_patterns_are_needed() -> None:
    with pytest.raises(UsageError, match="no file patterns"):
        FlowDefinition("x", lambda: None, pa.schema([]), ())  # type: ignore[arg-type,return-value]


def test_a_flow_loaded_by_path_travels_by_value() -> None:
    """A worker that has never seen the file can still make its Functions."""
    import subprocess
    import sys

    prepared = prepare(TOY)
    assert prepared.child_noun == "lines"
    code = (
        "import sys, cloudpickle; plan = cloudpickle.loads(sys.stdin.buffer.read());"
        "print(plan.modules[1].function(0.0).run(['a']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=cloudpickle.dumps(prepared.plan), capture_output=True, check=False,
        env={"PYTHONPATH": str(Path(__file__).parents[3])},
    )  # fmt: skip
    assert done.stdout.decode().strip() == "['A']", done.stderr.decode()
