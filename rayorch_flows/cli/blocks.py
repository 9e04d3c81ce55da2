"""``rayorch-flows blocks``."""

from __future__ import annotations

from rayorch_flows.cli.exit_status import OK


def register() -> int:
    """Register the Block types with the Prefect server, so that its UI offers them."""
    from rayorch_flows.cli.session import session

    with session():
        from rayorch_flows.orchestration.settings.block_types import register_block_types

        for slug in register_block_types():
            print(slug, flush=True)
    return OK
