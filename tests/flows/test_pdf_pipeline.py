"""The PDF Pipeline end to end on a real local Ray."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rayorch_flows import Executor, ItemOutcome, RayModule, RecoveryPolicy, SourceOutcome
from rayorch_flows.flows.pdf import FLOW, RECORD, PdfPipeline
from rayorch_flows.orchestration.server import processes
from rayorch_flows.stages.ocr import TesseractOcr
from rayorch_flows.stages.pdf import PageImage, PageRef, Render, TextLayer
from tests.corpus import pdfs, shared
from tests.stages.helpers import similarity, write

ray_test = pytest.mark.ray


def test_the_program_has_one_child_domain_and_names_its_calls() -> None:
    plan = PdfPipeline().compile()
    assert [domain.name for domain in plan.domains][1:] == ["page"]
    assert [call.name for call in plan.calls] == ["open", "text_layer", "render", "ocr", "join", "assemble"]
    assert plan.ports[plan.domains[1].result].call == plan.calls[4].id, (
        "children are told by the join, under the settle"
    )


def test_physical_options_do_not_change_what_the_records_mean() -> None:
    one, two = PdfPipeline(ocr_replicas=1).compile(), PdfPipeline(ocr_replicas=2).compile()
    assert one.semantic_fingerprint == two.semantic_fingerprint
    assert one.physical_fingerprint != two.physical_fingerprint
    assert PdfPipeline(dpi=150).compile().semantic_fingerprint != one.semantic_fingerprint
    assert PdfPipeline(ocr="rapidocr").compile().semantic_fingerprint != one.semantic_fingerprint


def test_all_actors_fit_into_one_core_for_each_recogniser() -> None:
    modules = PdfPipeline(ocr_replicas=1).compile().modules
    assert sum(m.options.replicas * dict(m.options.actor)["num_cpus"] for m in modules) <= 1


def test_the_flow_can_be_found_and_takes_pdfs() -> None:
    assert FLOW.name == "pdf"
    assert FLOW.record is RECORD
    assert "*.pdf" in FLOW.patterns


@pytest.fixture(scope="module")
def executor(ray_cluster: str) -> Iterator[Executor]:
    with Executor(PdfPipeline(ocr_replicas=2)) as executor:
        yield executor


def outcomes(executor: Executor, uris: list[str], **options: Any) -> dict[str, SourceOutcome]:
    found = list(executor.stream(uris, **options))
    assert sorted(outcome.index for outcome in found) == list(range(len(uris))), "every source once"
    return {Path(uris[outcome.index]).name: outcome for outcome in found}


@ray_test
def test_every_file_is_accounted_for_and_none_stops_another(executor: Executor, tmp_path: Path) -> None:
    kinds = {name: kind for name, (_, kind) in pdfs.UNUSABLE.items()}
    uris = [write(tmp_path, build(), name) for name, (build, _) in pdfs.UNUSABLE.items()]
    uris += [
        write(tmp_path, pdfs.good(3), "good.pdf"),
        write(tmp_path, pdfs.missing_page(), "missing_page.pdf"),
        write(tmp_path, pdfs.broken_content(), "broken_content.pdf"),
        write(tmp_path, pdfs.image_bomb(), "image_bomb.pdf"),
        write(tmp_path, pdfs.lost_page_tree(), "lost_page_tree.pdf"),
        write(tmp_path, pdfs.many_pages(200), "many_pages.pdf"),
    ]
    found = outcomes(executor, uris, input_batch_size=6, max_active_input_batches=2)
    for name, kind in kinds.items():
        assert found[name].cause is not None, name
        assert (found[name].cause.kind, found[name].cause.call) == (kind, "open"), name  # pyright: ignore
        assert found[name].children == ()
    for name in ("good.pdf", "missing_page.pdf", "broken_content.pdf", "many_pages.pdf"):
        assert found[name].outcome is ItemOutcome.PRESENT, name
    for name, kind in (("image_bomb.pdf", "too_large"), ("lost_page_tree.pdf", "corrupt")):
        cause = found[name].cause
        assert cause is not None
        assert (cause.kind, cause.call) == (kind, "assemble"), name
        assert [child.outcome for child in found[name].children] != [ItemOutcome.PRESENT]


@ray_test
def test_pages_come_back_in_order_with_their_sources(executor: Executor, tmp_path: Path) -> None:
    kinds = "dsbxds" + "d" * 70
    record = outcomes(executor, [write(tmp_path, pdfs.mixed(kinds))])["a.pdf"]
    assert record.outcome is ItemOutcome.PRESENT
    markdown = record.value["markdown"]
    pages = [page.strip() for page in re.split(r"<!-- page \d+ -->", markdown)[1:]]
    assert len(pages) == len(kinds) == record.value["n_pages"]
    for number, (kind, page) in enumerate(zip(kinds, pages, strict=True), 1):
        if kind == "d":
            assert page.startswith(f"Page {number}\n")
        elif kind == "s":
            assert similarity(page, "\n".join((f"Scan {number}", *pdfs.PROSE))) > 0.9
        else:
            assert page == ("" if kind == "b" else f"[page {number} missing: corrupt]")
    counts = [record.value[f"n_{name}"] for name in ("text_pages", "ocr_pages", "blank_pages", "holes")]
    assert counts == [72, 2, 1, 1]
    failed = [child for child in record.children if child.outcome is not ItemOutcome.PRESENT]
    assert [(child.domain, child.ordinals) for child in failed] == [("page", (3,))]
    assert failed[0].cause is not None
    assert (failed[0].cause.kind, failed[0].cause.call) == ("corrupt", "text_layer")
    assert [child.ordinals for child in record.children] == [(n,) for n in range(len(kinds))]


@ray_test
def test_records_fit_the_schema(executor: Executor, tmp_path: Path) -> None:
    uris = [write(tmp_path, pdfs.mixed("dsx"), "1.pdf"), write(tmp_path, pdfs.good(1), "2.pdf")]
    records = [outcome.value for outcome in outcomes(executor, uris).values()]
    assert all(set(record) == set(RECORD.names) for record in records)
    table = pa.Table.from_pylist(records, schema=RECORD)
    assert table.num_rows == 2


@ray_test
def test_a_second_run_uses_the_warm_actors(executor: Executor, tmp_path: Path) -> None:
    uris = [write(tmp_path, pdfs.good(1))]
    outcomes(executor, uris)

    def actors() -> list[tuple[str, int]]:
        assert executor._engine is not None
        return sorted((each["module"], each["pid"]) for each in executor._engine.actors() if each["ready"])

    replicas = sum(module.options.replicas for module in executor.plan.modules)
    assert processes.wait_until(lambda: len(actors()) == replicas, 120), "those that the first run did not wait for"
    before = actors()
    outcomes(executor, uris)
    assert actors() == before


class DiesOnce(TesseractOcr):
    """Takes its process down in its second batch, as a SIGKILL does; whoever comes after it lives."""

    def __init__(self, marker: str) -> None:
        super().__init__()
        self.marker = Path(marker)
        self.batches = 0

    def run(self, images: list[PageImage]) -> Any:
        self.batches += 1
        if self.batches == 2 and not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().run(images)


class MortalPipeline(PdfPipeline):
    """The PDF Pipeline with one recogniser that is killed in the middle."""

    def __init__(self, marker: str) -> None:
        super().__init__()
        self.ocr = (
            RayModule(DiesOnce)
            .pre_init(marker)
            .ray_options(batch_size=2, num_cpus=0.5, recovery=RecoveryPolicy.isolate_tail())
        )


@ray_test
@pytest.mark.slow
def test_a_killed_recogniser_changes_nothing(executor: Executor, ray_cluster: str, tmp_path: Path) -> None:
    uris = [write(tmp_path, pdfs.mixed("dssdss"), "1.pdf"), write(tmp_path, pdfs.scan(2), "2.pdf")]
    undisturbed = outcomes(executor, uris)
    marker = tmp_path / "died"
    with Executor(MortalPipeline(str(marker))) as mortal:
        killed = outcomes(mortal, uris)
    assert marker.exists()
    assert {n: (o.outcome, o.value, o.children) for n, o in killed.items()} == {
        n: (o.outcome, o.value, o.children) for n, o in undisturbed.items()
    }


class KilledByPage(TextLayer):
    """Dies, as pdfium may, whenever it meets the second page of a document named killer.pdf."""

    def run(self, refs: list[PageRef]) -> Any:
        if any(ref.uri.endswith("killer.pdf") and ref.index == 1 for ref in refs):
            os._exit(11)
        return super().run(refs)


class HungByPage(Render):
    """Hangs, as pdfium may, on the first page of a document named sleeper.pdf."""

    def run(self, refs: list[PageRef]) -> Any:
        if any(ref.uri.endswith("sleeper.pdf") and ref.index == 0 for ref in refs):
            time.sleep(3_600)
        return super().run(refs)


class RaisesOnDark(TesseractOcr):
    """Raises on the picture of an upside-down world: one with more black than white."""

    def run(self, images: list[PageImage]) -> Any:
        if any(image.pixels.mean() < 100 for image in images):
            raise RuntimeError("a dark page")
        return super().run(images)


class HostilePipeline(PdfPipeline):
    """The PDF Pipeline with Functions that die, hang and raise."""

    def __init__(self) -> None:
        super().__init__(ocr_replicas=1)
        bound: dict[str, Any] = {"batching": "parent_bound", "recovery": RecoveryPolicy.isolate_tail()}
        self.text_layer = RayModule(KilledByPage).returns(2).ray_options(batch_size=8, num_cpus=0.1, **bound)
        self.render = RayModule(HungByPage).ray_options(batch_size=4, num_cpus=0.1, deadline_s=15, **bound)
        self.ocr = RayModule(RaisesOnDark).ray_options(
            batch_size=4, num_cpus=0.5, recovery=RecoveryPolicy.isolate_tail()
        )


@ray_test
@pytest.mark.slow
def test_crashes_hangs_and_exceptions_leave_holes_and_nothing_else(ray_cluster: str, tmp_path: Path) -> None:
    uris = [
        write(tmp_path, pdfs.good(4), "killer.pdf"),
        write(tmp_path, pdfs.mixed("sd"), "sleeper.pdf"),
        write(tmp_path, pdfs.dark_scan(), "dark.pdf"),
        write(tmp_path, pdfs.mixed("ds"), "bystander.pdf"),
    ]
    with Executor(HostilePipeline()) as executor:
        found = outcomes(executor, uris)
    holes = {
        name: [(child.ordinals[0], child.cause.kind) for child in outcome.children if child.cause is not None]
        for name, outcome in found.items()
    }
    assert holes == {
        "killer.pdf": [(1, "worker_crash")],
        "sleeper.pdf": [(0, "timeout")],
        "dark.pdf": [(1, "function_error")],
        "bystander.pdf": [],
    }
    assert all(outcome.outcome is ItemOutcome.PRESENT for outcome in found.values())
    assert "[page 2 missing: worker_crash]" in found["killer.pdf"].value["markdown"]
    assert found["killer.pdf"].value["n_text_pages"] == 3
    assert found["bystander.pdf"].value["n_holes"] == 0


@ray_test
@pytest.mark.slow
@shared.needs_corpus
def test_the_whole_shared_corpus_goes_through(executor: Executor) -> None:
    manifest = shared.manifest()
    uris = [str(path) for path in shared.pdfs()]
    found = outcomes(executor, uris, input_batch_size=64, max_active_input_batches=2)
    for name, outcome in found.items():
        row = manifest[name]
        if row["opens_with_pypdfium2"] == "yes":
            assert outcome.outcome is ItemOutcome.PRESENT, (name, outcome.cause)
            assert len(outcome.children) == int(row["pages"]), name
        else:
            assert outcome.outcome is not ItemOutcome.PRESENT
            assert outcome.cause is not None
            assert outcome.cause.kind in ("encrypted", "corrupt", "empty", "unsupported"), name
    assert sum(len(outcome.children) for outcome in found.values()) == 1_941
