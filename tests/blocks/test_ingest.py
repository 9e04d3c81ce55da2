"""An ingest out of blocks: it works with their secrets, and nothing that it writes or says holds one of them."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rayorch_flows.records.table import RecordTable
from tests.blocks.lab import BlockLab
from tests.blocks.store import a_store
from tests.cli.lab import ROOT, Finished

pytestmark = [pytest.mark.prefect, pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]

READER = f"{ROOT}/tests/blocks/reader_flow.py:FLOW"
SOURCE_SECRET = "hunter2-source-key"
TABLE_SECRET = "hunter2-table-key"
MARK = "visible-marker"
"""Stands in a document, so that a search that finds nothing is known to look."""
FILES = {
    "a.txt": f"{MARK}\ntwo".encode(),
    "b.txt": b"three",
    "broken.txt": b"BROKEN",
    "other.dat": b"not wanted",
}

SAVE = f"""
import sys
from rayorch_flows.blocks import *
headers = {{"Authorization": "Bearer {SOURCE_SECRET}"}}
CorpusSource(
    uri=sys.argv[1] + "*.txt", storage_options={{"client_kwargs": {{"headers": headers}}}}
).save("docs", overwrite=True)
RecordTable(
    uri=sys.argv[2], storage_options={{"AWS_SECRET_ACCESS_KEY": "{TABLE_SECRET}"}}
).save("books", overwrite=True)
EngineSettings(calls={{"line": {{"replicas": 2, "batch_size": 1}}}}).save("fast", overwrite=True)
EngineSettings(calls={{"lime": {{"replicas": 2}}}}).save("typo", overwrite=True)
"""


@dataclass
class World:
    """``said`` is all that the commands printed, Prefect's debug log included."""

    block_lab: BlockLab
    table: Path
    said: str
    first: dict[str, Any]
    second: dict[str, Any]


@pytest.fixture(scope="module")
def world(block_lab: BlockLab) -> World:
    table = block_lab.lab.directory / "books"
    loud = {"PREFECT_LOGGING_LEVEL": "DEBUG"}
    with a_store(SOURCE_SECRET, FILES) as uri:
        block_lab.python(SAVE, uri, str(table))
        arguments = ["--json", "--verbose", "--microbatch-size", "2"]
        first = ingest(block_lab, *arguments, "--engine", "engine-settings/fast", **loud)
        second = ingest(block_lab, *arguments, **loud)
    assert first.status == second.status == 0, first.output + second.output
    return World(block_lab, table, first.output + second.output, first.summary, second.summary)


def ingest(block_lab: BlockLab, *arguments: str, source: str = "corpus-source/docs", **environment: str) -> Finished:
    return block_lab.lab.run(
        "ingest", source, "--table", "record-table/books", "--flow", READER, *arguments, **environment
    )


def test_the_sources_are_read_in_every_worker(world: World) -> None:
    rows = RecordTable.open(world.table).current(["uri", "outcome", "text", "place"]).to_pylist()
    found = {row["uri"].rpartition("/")[2]: row for row in rows}
    assert set(found) == {"a.txt", "b.txt", "broken.txt"}
    assert found["a.txt"]["text"] == f"{MARK}\ntwo".upper()
    assert found["b.txt"]["text"] == "THREE"
    assert found["b.txt"]["place"] == found["b.txt"]["uri"]
    assert (world.first["present"], world.first["failed"]) == (2, 1)


def test_other_engine_settings_ingest_nothing_again(world: World) -> None:
    assert world.second["unchanged"] == 3


def test_the_failure_is_told_without_the_key(world: World) -> None:
    (cause,) = [row["cause"] for row in RecordTable.open(world.table).current(["cause"]).to_pylist() if row["cause"]]
    assert "broken.txt" in cause
    assert "broken for ***" in cause, "the store quotes the key, the record does not"


def test_no_secret_in_what_was_said(world: World) -> None:
    assert "DEBUG" in world.said
    assert "corpus-source/docs" in world.said or "2 present" in world.said
    assert "hunter2" not in world.said


def test_no_secret_in_the_servers_database(world: World) -> None:
    home = world.block_lab.lab.home
    databases = list(home.prefect.glob("*.db"))
    assert databases
    found = b""
    for database in databases:
        with sqlite3.connect(database) as connection:
            found += "\n".join(connection.iterdump()).encode(errors="replace")
    assert b"corpus-source/docs" in found, "the reference is in the parameters"
    assert b"broken.txt" in found, "the failure is in the report"
    assert b"hunter2" not in found


@pytest.mark.parametrize("where", ["books", "ray", "home"])
def test_no_secret_in_any_file(world: World, where: str) -> None:
    files = [file for file in (world.block_lab.lab.directory / where).rglob("*") if file.is_file()]
    assert files
    if where == "ray":
        assert any(b"reading" in file.read_bytes() for file in files), "what workers print is in there"
    assert [file for file in files if b"hunter2" in file.read_bytes()] == []


def test_no_secret_in_the_table(world: World) -> None:
    assert "hunter2" not in str(RecordTable.open(world.table).rows().to_pylist())


def test_a_call_that_is_not_there(world: World) -> None:
    done = ingest(world.block_lab, "--engine", "engine-settings/typo")
    assert done.status == 2
    assert "Reader has no Call named 'lime'" in done.output
    assert "Did you mean 'line'?" in done.output
    assert "Traceback" not in done.output


def test_a_block_that_is_not_there(world: World) -> None:
    done = ingest(world.block_lab, source="corpus-source/dogs")
    assert done.status == 2
    assert "there is no block corpus-source/dogs" in done.output
    assert "Traceback" not in done.output


def test_failures_of_a_table_by_name(world: World) -> None:
    done = world.block_lab.lab.run("failures", "record-table/books")
    assert (done.status, "broken.txt" in done.output) == (0, True), done.output


def test_a_source_that_does_not_open_tells_no_key(world: World) -> None:
    with a_store("another-key", FILES) as uri:
        world.block_lab.python(SAVE, uri, str(world.table))
        done = ingest(world.block_lab, "--verbose")
    assert done.status == 2
    assert "the source cannot be listed" in done.output
    assert "hunter2" not in done.output
