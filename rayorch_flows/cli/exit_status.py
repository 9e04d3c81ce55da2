"""How every command ends; what an ingest did is graded by ``IngestSummary.exit_code``."""

from __future__ import annotations

from typing import Final

OK: Final = 0
USAGE: Final = 2
INFRASTRUCTURE: Final = 3
INTERRUPTED: Final = 130
TERMINATED: Final = 143
