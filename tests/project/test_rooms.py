"""The house: no two files import each other in a circle, and no folder is a drawer."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

PACKAGE = Path(__file__).parents[2] / "rayorch_flows"
LONGEST_LISTING = 16


@pytest.fixture(scope="module")
def imports() -> dict[str, set[str]]:
    """Each module with those it imports, under TYPE_CHECKING and inside functions too."""
    graph = grimp.build_graph("rayorch_flows", exclude_type_checking_imports=False, cache_dir=None)
    return {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}


def test_no_files_import_each_other_in_a_circle(imports: dict[str, set[str]]) -> None:
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as circle:
        pytest.fail(" imports ".join(reversed(circle.args[1])))


def test_imports_for_types_and_inside_functions_count(imports: dict[str, set[str]]) -> None:
    assert "rayorch_flows.program.plan" in imports["rayorch_flows.orchestration.cluster.engine_task"], "TYPE_CHECKING"
    assert "rayorch_flows.cli.run_ingest" in imports["rayorch_flows.cli.ingest"], "inside a function"


FOLDERS = [PACKAGE, *(path.parent for path in PACKAGE.rglob("__init__.py") if path.parent != PACKAGE)]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.relative_to(PACKAGE.parent).as_posix())
def test_a_folder_holds_few_modules(folder: Path) -> None:
    assert len([path for path in folder.glob("*.py") if path.name != "__init__.py"]) <= LONGEST_LISTING
