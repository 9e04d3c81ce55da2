"""What a flow run outlives."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import httpx
import pytest

from rayorch_flows.orchestration.server import outage
from rayorch_flows.orchestration.server.outage import patiently

_SPEAKER = """
import sys
from rich.console import Console
import rayorch_flows.orchestration.server.outage
sys.stdin.read()
Console(file=sys.stderr).print("to nobody")
sys.exit(7)
"""


async def test_a_server_that_is_away_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outage, "_AGAIN_S", 0.0)
    request = httpx.Request("GET", "http://server")
    troubles: list[Exception] = [
        httpx.ConnectError("refused"),
        httpx.HTTPStatusError("busy", request=request, response=httpx.Response(503, request=request)),
    ]

    async def ask(what: str) -> str:
        if troubles:
            raise RuntimeError("Failed to reach API") from troubles.pop()
        return what

    assert await patiently(ask, "answer") == "answer"


async def test_a_server_that_refuses_is_not_asked_again() -> None:
    request = httpx.Request("GET", "http://server")
    asked: list[str] = []

    async def ask() -> None:
        asked.append("once")
        raise httpx.HTTPStatusError("no", request=request, response=httpx.Response(404, request=request))

    with pytest.raises(httpx.HTTPStatusError):
        await patiently(ask)
    assert asked == ["once"]


async def test_a_flow_run_whose_cancellation_ends_in_a_failed_request_does_not_run_again() -> None:
    begun: list[str] = []

    async def run() -> None:
        begun.append("once")
        if len(begun) > 1:
            return
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError as cancelled:
            raise httpx.ConnectError("refused") from cancelled

    task = asyncio.create_task(patiently(run))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(httpx.ConnectError):
        await task
    assert begun == ["once"]


@pytest.mark.parametrize(("variable", "status"), [("PREFECT__FLOW_RUN_ID", 7), ("OTHER", 1)])
def test_a_flow_run_outlives_whoever_reads_its_output(variable: str, status: int) -> None:
    """Any other process ends when nobody reads its output, as it does without this project."""
    process = subprocess.Popen(
        [sys.executable, "-c", _SPEAKER],
        env=os.environ | {variable: "x"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    for pipe in (process.stdout, process.stderr, process.stdin):
        assert pipe is not None
        pipe.close()
    assert process.wait(60) == status
