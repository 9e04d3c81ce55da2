"""Opening and counting: what comes out of a good file, and which cause a bad one gets."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import fsspec
import pytest

from rayorch_flows.program.outcomes import CauseKind
from rayorch_flows.stages import files
from rayorch_flows.stages.pdf import OpenPdf, pdfium
from tests.corpus import pdfs
from tests.stages.helpers import failure, pages_of, present, write


@pytest.mark.parametrize(("build", "kind"), pdfs.UNUSABLE.values(), ids=list(pdfs.UNUSABLE))
def test_an_unusable_file_fails_with_its_kind(tmp_path: Path, build: Callable[[], bytes], kind: str) -> None:
    pages, infos = OpenPdf().run([write(tmp_path, build())])
    assert failure(pages[0]).kind == kind
    assert failure(infos[0]) == failure(pages[0])
    assert not failure(pages[0]).retryable


def test_a_bad_file_does_not_disturb_its_batch(tmp_path: Path) -> None:
    uris = [
        write(tmp_path, pdfs.good(2), "1.pdf"),
        write(tmp_path, pdfs.encrypted(), "2.pdf"),
        str(tmp_path / "missing.pdf"),
        write(tmp_path, pdfs.good(3), "3.pdf"),
    ]
    pages, infos = OpenPdf().run(uris)
    assert [len(present(pages[0])), len(present(pages[3]))] == [2, 3]
    assert [failure(p).kind for p in pages[1:3]] == ["encrypted", "unreadable"]
    assert [present(infos[0]).n_pages, present(infos[3]).n_pages] == [2, 3]


def test_the_cause_does_not_depend_on_the_file_opened_before(tmp_path: Path) -> None:
    """pdfium keeps its last error: a document without pages must not inherit it."""
    empty = write(tmp_path, pdfs.zero_pages(), "empty.pdf")
    locked = write(tmp_path, pdfs.encrypted(), "locked.pdf")
    pages, _ = OpenPdf().run([empty, locked, empty])
    assert [failure(p).kind for p in pages] == ["empty", "encrypted", "empty"]


@pytest.mark.parametrize(
    ("build", "count"),
    [
        (pdfs.good, 3),
        (pdfs.late_header, 3),
        (pdfs.broken_xref, 3),
        (pdfs.missing_page, 3),
        (pdfs.cyclic_tree, 2),
        (pdfs.deep_tree, 1),
        (pdfs.lost_page_tree, 1),
        (pdfs.many_pages, 1_000),
        (pdfs.lying_count, 1),
    ],
)
def test_every_page_of_the_tree_gets_a_reference(tmp_path: Path, build: Callable[[], bytes], count: int) -> None:
    assert [ref.index for ref in pages_of(write(tmp_path, build()))] == list(range(count))


def test_a_file_locked_for_its_owner_only_opens(tmp_path: Path) -> None:
    _, infos = OpenPdf().run([write(tmp_path, pdfs.owner_locked())])
    assert present(infos[0]).encrypted
    assert present(infos[0]).title == "Open to all"


def test_the_name_says_nothing_about_the_content(tmp_path: Path) -> None:
    assert len(pages_of(write(tmp_path, pdfs.good(), "page.html"))) == 3
    assert failure(OpenPdf().run([write(tmp_path, pdfs.html(), "a.pdf")])[0][0]).kind == "unsupported"


def test_limits_are_checked_before_anything_is_read(tmp_path: Path) -> None:
    uri = write(tmp_path, pdfs.good(11))
    small = failure(OpenPdf(max_bytes=100).run([uri])[0][0])
    short = failure(OpenPdf(max_pages=10).run([uri])[0][0])
    assert (small.kind, short.kind) == ("too_large", "too_large")
    assert "11 pages" in short.cause
    assert len(present(OpenPdf(max_pages=11).run([uri])[0][0])) == 11


def test_metadata_is_valid_text_on_one_line(tmp_path: Path) -> None:
    info = {"Title": "Two\nlines \ud800 and \u0007 a bell, \u017b\u00f3\u0142w \U0001f422", "Author": "A" * 5_000}
    found = present(OpenPdf().run([write(tmp_path, pdfs.good(1, info=info))])[1][0])
    assert found.title == "Two lines \ufffd and a bell, \u017b\u00f3\u0142w \U0001f422"
    assert len(found.author) == 2_000
    assert found.pdf_version == "1.7"


def test_missing_files_and_folders_are_unreadable_and_worth_a_retry(tmp_path: Path) -> None:
    fifo = tmp_path / "pipe.pdf"
    os.mkfifo(fifo)
    pages, _ = OpenPdf().run([str(tmp_path / "no.pdf"), str(tmp_path), str(fifo), "memory://none.pdf", "nope://a.pdf"])
    assert [failure(p).kind for p in pages] == ["unreadable"] * 5
    assert all(failure(p).retryable for p in pages)


def test_any_file_system_of_fsspec_will_do(tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe("/sub/a.pdf", pdfs.good(2))
    assert len(pages_of("memory://sub/a.pdf")) == 2
    assert len(pages_of(f"file://{write(tmp_path, pdfs.good(4))}")) == 4
    memory.pipe("/big.pdf", pdfs.good(2))
    assert failure(OpenPdf(max_bytes=10).run(["memory://big.pdf"])[0][0]).kind == "too_large"


def test_a_remote_file_longer_than_it_said_is_not_swallowed() -> None:
    fsspec.filesystem("memory").pipe("/long.bin", bytes(1_000))
    with pytest.raises(files.SourceFailure) as caught:
        files.read_all("memory://long.bin", 999)
    assert caught.value.kind is CauseKind.TOO_LARGE


def test_page_references_are_small(tmp_path: Path) -> None:
    refs = pages_of(write(tmp_path, pdfs.many_pages()))
    assert len(pickle.dumps(refs)) / len(refs) < 60


def test_one_document_at_a_time_in_a_process(tmp_path: Path) -> None:
    """The lock is held while a document is open, and let go when opening fails."""
    import threading

    uri = write(tmp_path, pdfs.good())
    bad = write(tmp_path, pdfs.truncated(), "bad.pdf")
    with pytest.raises(files.SourceFailure), pdfium.open_pdf(bad):
        pass
    entered = threading.Event()

    def other() -> None:
        with pdfium.open_pdf(uri):
            entered.set()

    with pdfium.open_pdf(uri):
        thread = threading.Thread(target=other)
        thread.start()
        assert not entered.wait(0.2)
    thread.join(5)
    assert entered.is_set()
