"""What a person finds in the Prefect UI, looked at with a browser.

With ``RAYORCH_SCREENSHOTS=folder`` the pictures of the documentation are taken anew.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from rayorch_flows.orchestration.server import prefect_server
from tests.browser.chrome import Page
from tests.cli.lab import Lab

pytestmark = [pytest.mark.browser, pytest.mark.prefect, pytest.mark.ray, pytest.mark.slow]

PICTURES = "[...document.querySelectorAll('img')].filter(i => i.src.startsWith('data:image/svg+xml'))"


@pytest.fixture(scope="module")
def broken(lab: Lab) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """An ingest of which one microbatch failed: the UI's address, the parent run and the failed one."""
    texts = {f"f{number:02}": "\n".join(f"line {n}" for n in range(3 * number + 1)) for number in range(20)}
    source = lab.corpus("broken", **texts, locked="ENCRYPTED", hole="fine\nBAD\nfine", zz="POISON")
    table = lab.directory / "corpus-table"
    finished = lab.ingest(source, table, "--microbatch-size", "12", RAYORCH_TOY_DELAY="0.01")
    assert finished.status == 0, finished.output
    runs = lab.api("flow_runs/filter", {"flow_runs": {"state": {"type": {"any_": ["FAILED"]}}}})
    (failed,) = [run for run in runs if "microbatch" in run["parameters"]]
    (parent,) = lab.api("flow_runs/filter", {"flow_runs": {"id": {"any_": [finished.summary["flow_run_id"]]}}})
    state = prefect_server.read_state(lab.home)
    assert state is not None
    return f"http://127.0.0.1:{state.port}", parent, failed


def keep(page: Page, name: str) -> None:
    folder = os.environ.get("RAYORCH_SCREENSHOTS")
    if folder:
        time.sleep(1)  # transitions
        page.picture(Path(folder) / f"{name}.png")


def test_the_report_of_a_failed_microbatch_is_three_clicks_away(
    page: Page, broken: tuple[str, dict[str, Any], dict[str, Any]]
) -> None:
    address, _, failed = broken
    page.open(f"{address}/runs")
    page.click(failed["name"], "a")
    page.wait_for_text("Started engine attempt 1 with")
    page.click("Artifacts", "[role=tab], .p-tab, button, a, li")
    page.click("present, ", "a, .artifact-card, p, div")
    page.wait_for_text("poison in the batch")
    assert page.clicks == 3
    page.wait_for_text("stopped early")
    page.wait_for(f"{PICTURES}.length === 2 && {PICTURES}.every(i => i.complete && i.naturalWidth > 300)", "pictures")
    widths = page.evaluate(f"{PICTURES}.map(i => i.getBoundingClientRect().width)")
    assert all(width > 300 for width in widths), "the pictures are there but cannot be seen"
    keep(page, "microbatch-report")


def test_the_roll_up_leads_to_its_microbatches(
    page: Page, lab: Lab, broken: tuple[str, dict[str, Any], dict[str, Any]]
) -> None:
    address, parent, failed = broken
    artifacts = lab.api("artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [parent["id"]]}}})
    (report,) = [each for each in artifacts if each["type"] == "markdown"]
    page.open(f"{address}/artifacts/artifact/{report['id']}")
    page.wait_for_text("Ingest into")
    page.wait_for_text("hole.txt")
    keep(page, "ingest-report")
    link = page.evaluate(
        "[...document.querySelectorAll('a')].find(a => a.innerText.trim() === "
        f"{json.dumps(failed['parameters']['microbatch'][:12])}).href"
    )
    page.open(link)
    page.wait_for_text(failed["name"])


def test_the_parent_run_shows_its_microbatches_and_its_story(
    page: Page, broken: tuple[str, dict[str, Any], dict[str, Any]]
) -> None:
    address, parent, failed = broken
    page.open(f"{address}/runs/flow-run/{parent['id']}")
    page.wait_for_text("to ingest in 2 microbatches")
    page.wait_for_text("Ray at")
    page.wait_for_text(failed["parameters"]["microbatch"][:10])
    keep(page, "ingest-run")
