"""The user code of the simulated documents: split into pages, look at each page, put the document together."""

from __future__ import annotations

import importlib
import json
import os
import time
from pathlib import Path
from typing import Any

from benchmarks import ledger
from benchmarks.ledger import Ledger
from benchmarks.workloads import page_value

WARM_UP = -1
"""The document number of pages that only warm the actors up: they cost what others cost, and are not written down."""

Page = tuple[int, int]


class Split:
    """(document, number of pages) to its pages."""

    def run(self, documents: list[tuple[int, int]]) -> list[list[Page]]:
        return [[(document, ordinal) for ordinal in range(pages)] for document, pages in documents]


class TrivialPage:
    """Costs nothing: what is left is the system's own cost."""

    def run(self, pages: list[Page]) -> list[int]:
        return [page_value(document, ordinal) for document, ordinal in pages]


class Gather:
    """The page results of a document: the sum tells an assembly that saw them all."""

    def run(self, documents: list[list[int]]) -> list[list[int]]:
        return documents


class Model:
    """Sleeps for a fixed cost a batch and a fixed cost a page, as a model on a GPU would keep its caller waiting."""

    def __init__(self, page_s: float, batch_s: float, poisoned: frozenset[int], stage: str = "page") -> None:
        self.page_s = page_s
        self.batch_s = batch_s
        self.poisoned = poisoned
        self.ledger = Ledger(stage)

    def look(self, pages: list[Page]) -> list[bool]:
        """Spend the time; True marks a poisoned page."""
        start = time.time()
        time.sleep(self.batch_s + self.page_s * len(pages))
        real = sum(document != WARM_UP for document, _ in pages)
        if not real:
            ledger.report_up()
            return [False] * len(pages)
        bad = [ordinal == 0 and document in self.poisoned for document, ordinal in pages]
        doomed = sum(document in self.poisoned for document, _ in pages) - sum(bad)
        self.ledger.write(start, real, doomed)
        return bad


class ModelPage(Model):
    """The model as a Function of a lineage engine; ``api`` names the library whose GroupFailure it returns."""

    def __init__(self, page_s: float, batch_s: float, poisoned: frozenset[int], api: str) -> None:
        super().__init__(page_s, batch_s, poisoned)
        self.failure: Any = importlib.import_module(api).GroupFailure

    def run(self, pages: list[Page]) -> list[Any]:
        return [
            self.failure("poisoned") if bad else page_value(*page)
            for page, bad in zip(pages, self.look(pages), strict=True)
        ]


class Render:
    """Sleeps for every page of a document, and hands the pages on."""

    def __init__(self, page_s: float) -> None:
        self.page_s = page_s
        self.ledger = Ledger("render")

    def run(self, documents: list[tuple[int, int]]) -> list[list[Page]]:
        return [self.render(document, pages) for document, pages in documents]

    def render(self, document: int, pages: int) -> list[Page]:
        start = time.time()
        time.sleep(self.page_s * pages)
        if document != WARM_UP:
            self.ledger.write(start, pages)
        return [(document, ordinal) for ordinal in range(pages)]


class DocumentModel:
    """The model without batches across documents: each document is cut into batches of its own, and given up at the
    first one that holds a poisoned page."""

    def __init__(self, page_s: float, batch_s: float, poisoned: frozenset[int], api: str, batch_size: int) -> None:
        self.page = ModelPage(page_s, batch_s, poisoned, api)
        self.batch_size = batch_size

    def run(self, documents: list[list[Page]]) -> list[Any]:
        return [self._document(pages) for pages in documents]

    def _document(self, pages: list[Page]) -> Any:
        for first in range(0, len(pages), self.batch_size):
            if any(self.page.look(pages[first : first + self.batch_size])):
                return self.page.failure("poisoned")
        return [page_value(*page) for page in pages]


class Assemble:
    """Sleeps for every document."""

    def __init__(self, document_s: float) -> None:
        self.document_s = document_s
        self.ledger = Ledger("assemble")

    def run(self, documents: list[list[int]]) -> list[list[int]]:
        return [self.assemble(pages) for pages in documents]

    def assemble(self, pages: list[int]) -> list[int]:
        start = time.time()
        time.sleep(self.document_s)
        if pages[0] >= 0:
            self.ledger.write(start, 1)
        return pages


class Writer:
    """Makes each record durable, one file a record."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        self.ledger = Ledger("write")

    def write(self, document: int, values: list[int]) -> None:
        start = time.time()
        with (self.folder / f"{document}.json").open("w") as file:
            json.dump(values, file)
            file.flush()
            os.fsync(file.fileno())
        self.ledger.write(start, 1)
