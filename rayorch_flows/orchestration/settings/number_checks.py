"""The numbers that a user gives, checked before anything is started."""

from __future__ import annotations

from rayorch_flows.errors import UsageError


def check_numbers(**numbers: int | None) -> None:
    """Counts are at least 1, the error budget at least 0; None stands for no limit."""
    for name, value in numbers.items():
        least = 0 if name == "max_failed" else 1
        if value is not None and value < least:
            raise UsageError(f"{name.replace('_', '-')} is {value}, it must be at least {least}")
