from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from rayorch_flows.program.outcomes import Cause, CauseKind
from rayorch_flows.records import lifecycle
from rayorch_flows.records.lifecycle import IngestPlan, clean_up, commit_microbatch, plan_ingest
from rayorch_flows.records.manifest import Manifest
from rayorch_flows.records.planning import Retry
from rayorch_flows.records.source import list_sources
from rayorch_flows.records.table import RecordTable
from tests.records.helpers import PRINT, RECORD, Outcome, failed, present

GAVE_UP = Cause(CauseKind.CANCELLED, "gave up", retryable=True)


class Corpus:
    """A folder of small files and its table."""

    def __init__(self, folder: Path, count: int = 10) -> None:
        self.folder = folder / "src"
        self.folder.mkdir()
        for number in range(count):
            self.write(f"{number}.pdf", f"content {number}")
        self.table = RecordTable(folder / "t", RECORD, flow="pdf")

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def plan(self, **options: object) -> IngestPlan:
        return plan_ingest(
            self.table,
            list_sources(self.folder),
            **{"flow": "pdf", "semantic_fingerprint": PRINT, "microbatch_size": 4, **options},  # type: ignore[arg-type]
        )

    def stage(self, manifest: Manifest, *outcomes: Outcome) -> None:
        self.table.sink(manifest).write(manifest.microbatch_id, 1, outcomes)

    def finish(self, plan: IngestPlan, *, run: str = "run", fail: frozenset[str] = frozenset()) -> None:
        """Run all of it: files whose name is in ``fail`` fail retryably."""
        for manifest in plan.microbatches:
            staged = self.table.staging(PRINT).read(manifest.microbatch_id)
            for index in staged.missing(manifest):
                name = manifest.uris[index].rsplit("/", 1)[-1]
                self.stage(manifest, failed(index, retryable=True) if name in fail else present(index, run))
            commit_microbatch(self.table, manifest, flow_run_id=run, unfinished=GAVE_UP)
            clean_up(self.table, manifest)

    def outcomes(self) -> dict[str, str]:
        rows = self.table.current(["uri", "outcome"]).to_pylist()
        return {row["uri"].rsplit("/", 1)[-1]: row["outcome"] for row in rows}

    def leftovers(self) -> list[Path]:
        return [path for path in (self.folder.parent / "t" / "_rayorch_flows").rglob("*") if path.is_file()]

    def doubled(self) -> list[object]:
        keys = self.table.rows(["uri", "content_hash", "semantic_fingerprint"]).to_pylist()
        return [key for key, count in Counter(tuple(key.values()) for key in keys).items() if count > 1]


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return Corpus(tmp_path)


def test_the_first_ingest_plans_everything_and_the_second_nothing(corpus: Corpus) -> None:
    plan = corpus.plan()
    assert (plan.listed, plan.pending, plan.unchanged, plan.adopted) == (10, 10, 0, 0)
    assert [len(manifest.sources) for manifest in plan.microbatches] == [4, 3, 3]
    corpus.finish(plan)
    assert set(corpus.outcomes().values()) == {"present"}
    assert corpus.leftovers() == []
    again = corpus.plan()
    assert (again.microbatches, again.unchanged) == ([], 10)


def test_only_new_and_changed_files_are_planned(corpus: Corpus) -> None:
    corpus.finish(corpus.plan())
    corpus.write("new.pdf", "new")
    corpus.write("3.pdf", "changed")
    (corpus.folder / "4.pdf").touch()
    plan = corpus.plan()
    assert [uri.rsplit("/", 1)[-1] for manifest in plan.microbatches for uri in manifest.uris] == ["3.pdf", "new.pdf"]
    corpus.finish(plan)
    assert corpus.table.rows().num_rows == 12
    assert corpus.table.current().num_rows == 11


def test_a_touched_file_is_hashed_once_only(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus.finish(corpus.plan())
    (corpus.folder / "4.pdf").touch()
    assert corpus.plan().unchanged == 10
    monkeypatch.setattr(lifecycle, "find_pending", _counting(seen := []))
    corpus.plan()
    assert seen == [0]


def _counting(seen: list[int]) -> object:
    real = lifecycle.find_pending

    def find(*args: object, **options: object) -> object:
        pending = real(*args, **options)  # type: ignore[arg-type]
        seen.append(len(pending.moved))
        return pending

    return find


def test_content_that_comes_back_makes_its_old_row_current(corpus: Corpus) -> None:
    corpus.finish(corpus.plan(), run="first")
    corpus.write("0.pdf", "other")
    corpus.finish(corpus.plan(), run="second")
    corpus.write("0.pdf", "content 0")
    assert corpus.plan().microbatches == []
    [row] = [row for row in corpus.table.current().to_pylist() if row["uri"].endswith("/0.pdf")]
    assert (row["text"], row["size"]) == ("first", len("content 0"))


def test_a_crash_in_the_middle_resumes_the_same_microbatches(corpus: Corpus) -> None:
    plan = corpus.plan()
    first, second, third = plan.microbatches
    commit_of(corpus, first)
    corpus.stage(second, present(0, "kept"), failed(1, retryable=True))
    corpus.write("new.pdf", "new")
    again = corpus.plan()
    assert {m.microbatch_id for m in again.microbatches[:2]} == {second.microbatch_id, third.microbatch_id}
    assert (again.adopted, again.pending) == (2, len(second.sources) + len(third.sources) + 1)
    assert corpus.table.staging(PRINT).read(second.microbatch_id).missing(second) == [1, 2]
    corpus.finish(again, run="again")
    assert set(corpus.outcomes().values()) == {"present"}
    assert Counter(corpus.table.rows(["text"])["text"].to_pylist()) == {"run": 4, "kept": 1, "again": 6}
    assert (corpus.doubled(), corpus.leftovers()) == ([], [])


def commit_of(corpus: Corpus, manifest: Manifest) -> None:
    corpus.finish(IngestPlan([manifest], 0, 0, 0, 0))


def test_a_crash_between_commit_and_clean_up_is_cleaned_up(corpus: Corpus) -> None:
    first, *_ = corpus.plan().microbatches
    corpus.stage(first, *(present(index) for index in range(len(first.sources))))
    commit_microbatch(corpus.table, first, flow_run_id="run", unfinished=GAVE_UP)
    again = corpus.plan()
    assert first.microbatch_id not in {manifest.microbatch_id for manifest in again.microbatches}
    assert not [path for path in corpus.leftovers() if first.microbatch_id in str(path)]


def test_what_a_stale_microbatch_had_finished_is_kept(corpus: Corpus) -> None:
    first, *rest = corpus.plan().microbatches
    changed = first.uris[0].rsplit("/", 1)[-1]
    corpus.stage(first, present(0, "old content"), present(1, "kept"), failed(2, retryable=True))
    corpus.write(changed, "changed in between")
    again = corpus.plan()
    assert (again.adopted, again.pending) == (len(rest), 9)
    corpus.finish(again, run="again")
    rows = [row for row in corpus.table.rows().to_pylist() if row["uri"].endswith(f"/{changed}")]
    assert sorted(row["text"] for row in rows) == ["again", "old content"]
    assert len(corpus.table.rows()) == 11
    assert corpus.leftovers() == []


def test_microbatches_of_another_source_are_left_alone(corpus: Corpus, tmp_path: Path) -> None:
    corpus.plan()
    other = tmp_path / "other"
    other.mkdir()
    (other / "x.pdf").write_text("x")
    plan = plan_ingest(corpus.table, list_sources(other), flow="pdf", semantic_fingerprint=PRINT, microbatch_size=4)
    assert (plan.adopted, plan.pending) == (0, 1)
    assert corpus.plan().adopted == 3


def test_failed_rows_are_replaced_on_a_wanted_rerun(corpus: Corpus) -> None:
    corpus.finish(corpus.plan(), fail=frozenset({"1.pdf", "2.pdf"}))
    assert corpus.plan().microbatches == []
    plan = corpus.plan(retry=Retry.RETRYABLE)
    assert (plan.retried, plan.pending, plan.unchanged) == (2, 2, 8)
    corpus.finish(plan, run="rerun", fail=frozenset({"2.pdf"}))
    assert [name for name, outcome in corpus.outcomes().items() if outcome == "failed"] == ["2.pdf"]
    assert corpus.table.rows().num_rows == 10
    third = corpus.plan(retry=Retry.RETRYABLE)
    assert third.microbatches[0].microbatch_id != plan.microbatches[0].microbatch_id
    corpus.finish(third, run="third")
    assert set(corpus.outcomes().values()) == {"present"}


def test_a_rerun_that_crashed_is_adopted_although_its_sources_have_rows(corpus: Corpus) -> None:
    corpus.finish(corpus.plan(), fail=frozenset({"1.pdf"}))
    [manifest] = corpus.plan(retry=Retry.FAILED).microbatches
    again = corpus.plan()
    assert [m.microbatch_id for m in again.microbatches] == [manifest.microbatch_id]
    corpus.finish(again)
    assert corpus.outcomes()["1.pdf"] == "present"


def test_two_ingests_at_once_plan_the_same_and_commit_once(corpus: Corpus) -> None:
    one = corpus.plan()
    two = corpus.plan()
    assert sorted(m.microbatch_id for m in one.microbatches) == sorted(m.microbatch_id for m in two.microbatches)
    corpus.finish(one, run="one")
    corpus.finish(two, run="two")
    assert corpus.doubled() == []
    assert set(corpus.table.rows(["flow_run_id"])["flow_run_id"].to_pylist()) == {"one"}


def test_a_limit_counts_adopted_sources_too(corpus: Corpus) -> None:
    assert corpus.plan(limit=3).pending == 3
    assert corpus.plan(limit=5).pending == 5
    assert corpus.plan(limit=1).pending == 5


def test_sources_without_any_outcome_get_a_row(corpus: Corpus) -> None:
    first, *_ = corpus.plan().microbatches
    corpus.stage(first, present(0))
    assert commit_microbatch(corpus.table, first, flow_run_id="r", unfinished=None).inserted == 1
    result = commit_microbatch(corpus.table, first, flow_run_id="r", unfinished=GAVE_UP, attempt=3)
    assert (result.inserted, result.skipped) == (3, 1)
    causes = corpus.table.rows(["outcome", "cause", "attempt"]).to_pylist()
    assert [row["cause"] for row in causes if row["outcome"] == "failed"] == ["gave up"] * 3


def test_a_new_fingerprint_ingests_everything_again(corpus: Corpus) -> None:
    corpus.finish(corpus.plan())
    assert corpus.plan(semantic_fingerprint="e" * 64).pending == 10
