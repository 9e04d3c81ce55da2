"""Pipeline: the class that a user subclasses, a Program that can also run itself on Ray."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rayorch_flows.program.program import Program

if TYPE_CHECKING:
    from rayorch_flows.runtime.results import RunResult


class Pipeline(Program):
    """A program: modules as attributes, and ``forward``, which wires them.

    Every positional parameter of ``forward`` is a source column; what it returns, a Port or a tuple of Ports, is the
    output.
    """

    def run(
        self,
        *source_columns: Sequence[Any],
        input_batch_size: int | None = None,
        max_active_input_batches: int = 1,
        address: str | None = None,
        ray_init_kwargs: dict[str, Any] | None = None,
    ) -> RunResult:
        """Runs the program once on row-aligned columns, with actors that live only for this run."""
        # Only here: whoever writes or compiles a program does not wait for Ray's import.
        from rayorch_flows.runtime.executor import run

        return run(
            self,
            *source_columns,
            input_batch_size=input_batch_size,
            max_active_input_batches=max_active_input_batches,
            address=address,
            ray_init_kwargs=ray_init_kwargs,
        )
