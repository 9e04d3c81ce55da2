"""The ``rayorch-flows`` command: one module a command, each parses, makes one call and prints once.

Exit statuses are in ``exit_status``, text against ``--json`` in ``output``, the way out of every error in ``app``.
"""

from rayorch_flows.cli.app import main

__all__ = ["main"]
