from __future__ import annotations

from ray.exceptions import RayTaskError

from rayorch_flows import InfrastructureError
from rayorch_flows.orchestration.reporting.exception_text import LONGEST, gist


def test_a_package_that_the_workers_do_not_have() -> None:
    missing = ModuleNotFoundError("No module named 'only_here'")
    lost = RayTaskError("load", "Traceback (most recent call last):\n  ...", missing)
    for error in (missing, lost):
        first, then = gist(error).splitlines()
        assert first == "ModuleNotFoundError: No module named 'only_here'"
        assert then.startswith("  next: install it where the workers run")
        assert "runtime_env" in then


def test_our_own_errors_keep_all_their_lines() -> None:
    assert gist(InfrastructureError("gone", next_step="start it")) == "gone\n  next: start it"


def test_others_are_short_and_plain() -> None:
    assert gist(ValueError("\x1b[31mred\x1b[0m")) == "ValueError: red"
    assert len(gist(ValueError("x" * 5000))) == LONGEST
    assert (
        gist(RuntimeError("Traceback (most recent call last):\n  File x\nKeyError: 'k'"))
        == "RuntimeError: KeyError: 'k'"
    )
