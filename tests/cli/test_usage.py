"""Usage errors: exit status 2 and one clear message, before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from rayorch_flows.cli.app import _guarded

TOY = str(Path(__file__).parents[1] / "orchestration" / "toy_flow.py") + ":FLOW"


@pytest.fixture(autouse=True)
def _nothing_may_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import rayorch_flows.orchestration.server.prefect_server as servers

    def refuse(home: object) -> None:
        raise AssertionError("a server was started for a command that cannot work")

    monkeypatch.setattr(servers, "claim", refuse)
    monkeypatch.setenv("RAYORCH_FLOWS_HOME", str(tmp_path / "home"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ingest"], "ingest needs SOURCE"),
        (["ingest", "/tmp"], "ingest needs --table"),
        (["ingest", "/tmp", "--tabel", "t"], "ingest needs --table, and does not know --tabel"),
        (["ingest", "/tmp", "--table"], "--table requires an argument"),
        (["ingest", "/tmp", "--table", "t", "--limit", "many"], "--limit"),
        (["ingest", "/tmp", "--table", "t", "--nonsense"], "nonsense"),
        (["ingest", "/tmp", "--table", "t", "--flow", TOY, "--limit", "0"], "limit is 0"),
        (["ingest", "/tmp", "--table", "t", "--flow", TOY, "--concurrency", "-1"], "concurrency is -1"),
        (["ingest", "/tmp", "--table", "t", "--flow", TOY, "--max-failed", "-1"], "max-failed is -1"),
        (["ingest", "/tmp", "--table", "t", "--flow", "no-such-flow"], "no flow named 'no-such-flow'"),
        (["ingest", "/tmp", "--table", "t", "--flow", "/no/such/file.py:FLOW"], "no flow file"),
        (["ingest", "/tmp", "--table", "t", "--flow", TOY.replace("FLOW", "NOTHING")], "no 'NOTHING'"),
        (["ingest", "/tmp", "--table", "t", "--flow", TOY.replace("FLOW", "note")], "not a FlowDefinition"),
        (["ingest", "/no/such/folder", "--table", "t", "--flow", TOY], "no such file or folder"),
        (["failures", "/no/such/table"], "no record table"),
        (["nonsense"], "nonsense"),
    ],
)
def test_usage_errors(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _guarded(arguments) == 2
    captured = capsys.readouterr()
    text = " ".join((captured.out + captured.err).replace("│", " ").split())
    assert message in text
    assert "Traceback" not in text


@pytest.mark.parametrize("given", ["--cluster", "RAY_ADDRESS"])
def test_a_dead_cluster_is_told_before_anything_is_written(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    option = ["--cluster", "127.0.0.1:9"] if given == "--cluster" else []
    if not option:
        monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    source, table = tmp_path / "source", tmp_path / "table"
    source.mkdir()
    assert _guarded(["ingest", str(source), "--table", str(table), "--flow", TOY, *option]) == 3
    error = capsys.readouterr().err
    assert "no Ray cluster answers at 127.0.0.1:9" in error
    assert "next: start it" in error
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert _guarded(["ingest", "--help"]) == 0
    text = capsys.readouterr().out
    for option in ("--table", "--flow", "--microbatch-size", "--concurrency", "--limit", "--max-failed", "--json"):
        assert option in text
