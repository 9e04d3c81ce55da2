"""Whole runs on a real local Ray."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rayorch_flows import (
    ExecutionError,
    Executor,
    F,
    ItemOutcome,
    OutputIssue,
    Pipeline,
    RayModule,
    RecoveryPolicy,
    function,
)
from tests.runtime.functions import (
    CPU,
    AddOne,
    Blobs,
    Brighten,
    Documents,
    FailFirst,
    Flat,
    Gated,
    Join,
    Multi,
    Pages,
    Returns,
    Shrink,
    Slow,
    Total,
    Two,
    Unequal,
    wait_for,
)

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]


@pytest.fixture(autouse=True)
def validated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYORCH_FLOWS_VALIDATE", "1")


def test_documents_in_several_microbatches() -> None:
    pipeline = Documents(RayModule(AddOne).ray_options(batch_size=4, replicas=2, **CPU))
    with Executor(pipeline) as executor:
        docs = [3, 0, -1, 10, 1, 7]
        for size, active in ((None, 1), (2, 1), (1, 3)):
            result = executor.run(docs, input_batch_size=size, max_active_input_batches=active)
            issue = OutputIssue(ItemOutcome.SUPPRESSED, "negative: -1")
            assert result.outputs == [6, 0, issue, 55, 1, 28]
            assert result.peak_active_input_batches == min(active, len(result.input_batches))
        assert [batch.rows for batch in result.input_batches] == [1] * 6
        middle = result.calls[1]
        assert (middle.call, middle.grains, middle.failed) == ("middle", 21, 0)
        assert result.calls[0].failed == 1
        assert result.calls[2].suppressed == 1
        assert sum(size * count for size, count in middle.sizes.items()) == 21
        assert 0 < middle.fill <= 1
        assert result.actor_count == 4


def test_actors_are_reused_and_zero_rows_are_no_work() -> None:
    module = RayModule(Multi).ray_options(batch_size=8, **CPU)

    class Pids(Pipeline):
        def __init__(self) -> None:
            self.module = module

        def forward(self, values: Any) -> Any:
            return self.module(values, op="first")

    with Executor(Pids()) as executor:
        pids = {pid for _ in range(3) for pid, _ in executor.run([1, 2]).outputs}
        assert len(pids) == 1
        empty = executor.run([])
        assert empty.outputs == []
        assert empty.rpc_count == 0


def test_calls_of_one_module_share_its_actors() -> None:
    class Shared(Pipeline):
        def __init__(self) -> None:
            self.module = RayModule(Multi).ray_options(batch_size=4, **CPU)

        def forward(self, values: Any) -> Any:
            return self.module(self.module(values, op="first"), op="second")

    with Executor(Shared()) as executor:
        outputs = executor.run([1, 2, 3]).outputs
    assert {outer for outer, _ in outputs} == {inner for _, (inner, _) in outputs}
    assert [value for _, (_, value) in outputs] == [2, 3, 4]


def test_several_outputs_and_several_sources() -> None:
    class Pair(Pipeline):
        def __init__(self) -> None:
            self.two = RayModule(Two).ray_options(batch_size=2, **CPU).returns(2)
            self.join = RayModule(Join).ray_options(batch_size=2, **CPU)

        def forward(self, left: Any, right: Any) -> Any:
            low, high = self.two(left)
            return self.join(low, right), high

    with Executor(Pair()) as executor:
        assert executor.run([1, 2, 3], ["a", "b", "c"]).outputs == ([(1, "a"), (2, "b"), (3, "c")], [10, 20, 30])
        assert executor.run([], []).outputs == ([], [])
        with pytest.raises(ValueError, match="row-aligned"):
            executor.run([1], [])
        with pytest.raises(TypeError, match="2 source columns"):
            executor.run([1])


def test_nested_expansion() -> None:
    class Nested(Pipeline):
        def __init__(self) -> None:
            self.pages = RayModule(Pages).ray_options(batch_size=2, **CPU)
            self.tables = RayModule(Pages).ray_options(batch_size=3, **CPU)
            self.add = RayModule(AddOne).ray_options(batch_size=4, **CPU)
            self.total = RayModule(Total).ray_options(batch_size=4, **CPU)

        def forward(self, docs: Any) -> Any:
            pages = F.expand(self.pages(docs))
            tables = F.expand(self.tables(pages))
            return F.reduce(self.total(F.reduce(self.add(tables)))), F.reduce(F.reduce(tables))

    with Executor(Nested()) as executor:
        totals, nested = executor.run([3, 0, 5], input_batch_size=2, max_active_input_batches=2).outputs
    assert totals == [[0, 1, 3], [], [0, 1, 3, 6, 10]]
    assert nested == [[[], [0], [0, 1]], [], [[], [0], [0, 1], [0, 1, 2], [0, 1, 2, 3]]]


def test_plain_functions_and_local_types() -> None:
    class Local:
        def __init__(self, value: int) -> None:
            self.value = value

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Local) and other.value == self.value

        def __hash__(self) -> int:
            return self.value

    module = function(lambda values: [Local(value.value + 1) for value in values]).ray_options(**CPU)
    with Executor(Flat(module)) as executor:
        assert executor.run([Local(1), Local(2)]).outputs == [Local(2), Local(3)]


def test_large_arrays_go_through_the_object_store() -> None:
    class Images(Pipeline):
        def __init__(self) -> None:
            self.render = RayModule(Blobs).ray_options(**CPU)
            self.brighten = RayModule(Brighten).ray_options(batch_size=2, replicas=2, **CPU)
            self.shrink = RayModule(Shrink).ray_options(batch_size=3, **CPU)

        def forward(self, docs: Any) -> Any:
            pages = F.expand(self.render(docs))
            bright = self.brighten(pages)
            return F.reduce(self.shrink(bright)), F.reduce(bright)

    with Executor(Images()) as executor:
        docs = [5, 0, 12, 7] * 3
        for _ in range(2):
            sizes, images = executor.run(docs, input_batch_size=4).outputs
            assert sizes == [[1_000_000 + page + 1 for page in range(n)] for n in docs]
            assert [len(group) for group in images] == docs
            assert images[2][11].max() == images[2][11].min() == 12
        blocks = executor._engine._traffic.blocks  # pyright: ignore[reportPrivateUsage]
        assert len(blocks) == 0
    images[0][0][0] = 9  # a copy of ours, alive and writable after the actors have gone
    assert images[0][0].sum() == 1_000_000 - 1 + 9


def test_large_source_values() -> None:
    with Executor(Flat(RayModule(Brighten).ray_options(batch_size=2, **CPU))) as executor:
        arrays = [np.full(300_000, i, np.uint8) for i in range(20)]
        outputs = executor.run(arrays).outputs
    assert [int(array[-1]) for array in outputs] == list(range(1, 21))


def test_stream_yields_early_and_holds_admission_back(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    pipeline = Documents(RayModule(Gated).pre_init(gate, 20).ray_options(batch_size=1, **CPU))
    with Executor(pipeline) as executor:
        stream = executor.stream([1, 30], max_active_input_batches=1)
        first = next(stream)  # while the second document waits at its page 20
        assert first.index == 0
        assert first.value == 1
        assert [child.ordinals for child in first.children] == [(0,)]
        gate.touch()
        assert [outcome.index for outcome in stream] == [1]
        # Two of six microbatches may be active: with a consumer that takes nothing, no third one starts.
        stream = executor.stream([1] * 6, input_batch_size=1, max_active_input_batches=2)
        next(stream)
        wait_for(lambda: not executor._engine._active)  # pyright: ignore[reportPrivateUsage]
        run = executor._run  # pyright: ignore[reportPrivateUsage]
        assert run is not None
        assert run.peak == 2
        assert len(run.finished) == 0
        assert len(list(stream)) == 5


def test_a_closed_stream_leaves_a_usable_executor() -> None:
    pipeline = Documents(RayModule(Slow).ray_options(batch_size=1, **CPU))
    with Executor(pipeline) as executor:
        executor.stream([1])  # never begun: it holds nothing up
        stream = executor.stream([1, 50, 50])
        next(stream)
        with pytest.raises(RuntimeError, match="under way"):
            executor.run([1])
        stream.close()  # type: ignore[attr-defined]
        assert executor.run([2]).outputs == [3]


def test_cancel_from_another_thread() -> None:
    pipeline = Documents(RayModule(Slow).ray_options(batch_size=1, **CPU))
    with Executor(pipeline) as executor:

        def cancel() -> None:
            wait_for(lambda: any(actor["in_flight"] for actor in executor._engine.actors()))  # pyright: ignore
            executor.cancel()

        threading.Thread(target=cancel).start()
        with pytest.raises(ExecutionError, match="cancelled"):
            executor.run([5_000])  # minutes
        assert executor.run([2]).outputs == [3]
    with pytest.raises(RuntimeError, match="closed"):
        executor.run([1])
    executor.close()


def test_group_failure_suppresses_its_siblings_only() -> None:
    module = RayModule(FailFirst).ray_options(batch_size=4, replicas=1, **CPU)
    with Executor(Documents(module, total=False)) as executor:
        [broken] = executor.stream([60])
        assert broken.outcome is ItemOutcome.SUPPRESSED
        assert broken.cause is not None
        assert (broken.cause.message, broken.cause.call, broken.cause.ordinals) == (
            "first page is broken",
            "middle",
            (0,),
        )
        outcomes = [child.outcome for child in broken.children]
        assert outcomes[0] is ItemOutcome.FAILED
        assert outcomes.count(ItemOutcome.SUPPRESSED) >= 40
        result = executor.run([60])
        call = result.calls[1]
        assert call.suppressed == 60 - call.grains
        assert call.grains < 20


def test_an_exception_aborts_with_the_call_and_the_cause_and_the_executor_goes_on() -> None:
    class Picky:
        def run(self, values: list[int]) -> list[int]:
            if 3 in values:
                raise LookupError("three is not welcome")
            return values

    pipeline = Documents(RayModule(Picky).ray_options(batch_size=1, **CPU))
    with Executor(pipeline) as executor:
        for _ in range(2):
            with pytest.raises(ExecutionError) as error:
                executor.run([2, 5], input_batch_size=1, max_active_input_batches=2)
            text = str(error.value)
            assert "Call 'middle'" in text
            assert "3" in text
            assert "LookupError: three is not welcome" in text
            assert "functions.py" in text  # the user's line of the Call
            assert isinstance(error.value.__cause__, LookupError)
            assert any("in run" in note for note in error.value.__notes__)
            assert executor.run([3]).outputs == [3]


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("short", "rows for a batch of 2"),
        ("generator", "has to be a list"),
        ("none", "got None"),
        ("dict", "'dict'"),
        ("lock", "cannot be pickled"),
    ],
)
def test_broken_contracts_name_the_call(what: str, told: str) -> None:
    with Executor(Flat(RayModule(Returns).pre_init(what).ray_options(batch_size=2, **CPU))) as executor:
        with pytest.raises(ExecutionError) as error:
            executor.run([1, 2])
        assert "Call 'module'" in str(error.value)
        assert "(contract)" in str(error.value)
        assert told in str(error.value)


def test_contracts_of_masks_and_groups() -> None:
    class Mask(Pipeline):
        def __init__(self, what: str) -> None:
            self.mask = RayModule(Returns).pre_init(what).ray_options(batch_size=4, **CPU)

        def forward(self, values: Any) -> Any:
            return F.filter(values, self.mask(values))

    with Executor(Mask("numpy bools")) as executor:
        dropped = OutputIssue(ItemOutcome.DROPPED)
        assert executor.run([1, 2, 3, 4]).outputs == [dropped, 2, dropped, 4]
    with Executor(Mask("integers")) as executor, pytest.raises(ExecutionError, match="used as a mask"):
        executor.run([1])

    class Group(Pipeline):
        def __init__(self) -> None:
            self.group = RayModule(Returns).pre_init("strings").ray_options(**CPU)

        def forward(self, values: Any) -> Any:
            return F.reduce(F.expand(self.group(values)))

    with Executor(Group()) as executor, pytest.raises(ExecutionError, match="expanded, so each row has to be a list"):
        executor.run([1])

    class Aligned(Pipeline):
        def __init__(self) -> None:
            self.unequal = RayModule(Unequal).ray_options(recovery=RecoveryPolicy.isolate_tail(), **CPU).returns(2)

        def forward(self, values: Any) -> Any:
            left, right = F.expand_aligned(*self.unequal(values))
            return F.reduce(left), F.reduce(right)

    with Executor(Aligned()) as executor:
        left, right = executor.run([2, 3]).outputs
        assert left[0] == right[0] == [0, 0]
        assert "expanded together" in left[1].cause


def test_sources_are_checked() -> None:
    class Group(Pipeline):
        def __init__(self) -> None:
            self.add = RayModule(AddOne).ray_options(**CPU)

        def forward(self, values: Any) -> Any:
            return F.reduce(self.add(F.expand(values)))

    with Executor(Group()) as executor:
        good, bad, empty = executor.run([[1, 2], 5, []]).outputs
        assert (good, empty) == ([2, 3], [])
        assert bad.cause.startswith("source 'values' is expanded")


@pytest.mark.slow
def test_a_script_starts_its_own_ray_and_ends_it(tmp_path: Path) -> None:
    """Classes of __main__, values of them, a clean terminal, and no Ray left behind, nor by a forgotten close."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        import os
        import ray
        import rayorch_flows as rf

        class Page:
            def __init__(self, n): self.n = n

        class Split:
            def run(self, docs): return [[Page(i) for i in range(doc.n)] for doc in docs]

        class Grow:
            def run(self, pages): return [Page(page.n + 1) for page in pages]

        class Pipe(rf.Pipeline):
            def __init__(self):
                self.split = rf.RayModule(Split)
                self.grow = rf.RayModule(Grow).ray_options(batch_size=4)
            def forward(self, docs):
                return rf.F.reduce(self.grow(rf.F.expand(self.split(docs))))

        result = Pipe().run([Page(2), Page(3)], ray_init_kwargs={"num_cpus": 2, "object_store_memory": 100_000_000})
        assert all(type(page) is Page for group in result.outputs for page in group)
        print([[page.n for page in group] for group in result.outputs], ray.is_initialized())
        left_open = rf.Executor(Pipe(), ray_init_kwargs={"num_cpus": 2, "object_store_memory": 100_000_000})
        print(len(left_open.run([Page(4)]).outputs[0]))
        """)
    )
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    environment.pop("RAY_ADDRESS", None)
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=400, env=environment, check=False
    )
    assert done.stdout.splitlines() == ["[[1, 2], [1, 2, 3]] False", "4"], done.stderr
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("given", [Documents, 3, None])
def test_an_executor_of_something_else(given: Any) -> None:
    with pytest.raises(TypeError, match="takes a Pipeline object"):
        Executor(given)


@pytest.mark.parametrize(
    ("columns", "options", "told"),
    [
        ((3,), {}, "source column 0 must be a list of rows, not 3"),
        (([1],), {"input_batch_size": "3"}, "input_batch_size must be a whole number"),
        (([1],), {"input_batch_size": 1.5}, "input_batch_size must be a whole number"),
        (([1],), {"max_active_input_batches": None}, "max_active_input_batches must be a whole number"),
        (([1],), {"input_batch_size": 0}, "input_batch_size must be positive"),
    ],
)
def test_arguments_of_a_run_that_cannot_be(columns: Any, options: dict[str, Any], told: str) -> None:
    with Executor(Flat(RayModule(AddOne).ray_options(**CPU))) as executor:
        with pytest.raises((TypeError, ValueError), match=told):
            executor.run(*columns, **options)
        assert executor.run([1]).outputs == [2]
