"""How every command ends, in one place."""

from __future__ import annotations

from typing import Final

OK: Final = 0
OVER_BUDGET: Final = 1
USAGE: Final = 2
INFRASTRUCTURE: Final = 3
INTERRUPTED: Final = 130
TERMINATED: Final = 143
