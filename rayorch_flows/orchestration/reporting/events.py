"""The events that the flows emit, for automations and for whoever watches."""

from __future__ import annotations

from typing import Final

from prefect.events import emit_event

from rayorch_flows.orchestration.reporting.summary import IngestSummary, MicrobatchSummary

MICROBATCH_COMMITTED: Final = "rayorch.microbatch.committed"
MICROBATCH_FAILED: Final = "rayorch.microbatch.failed"
CORPUS_COMPLETED: Final = "rayorch.corpus.completed"
ASSET_MATERIALIZED: Final = "prefect.asset.materialization.succeeded"


def microbatch_ended(part: MicrobatchSummary, table: str) -> None:
    """``rayorch.microbatch.committed`` or ``.failed``, about the table."""
    emit_event(
        MICROBATCH_COMMITTED if part.committed and not part.error else MICROBATCH_FAILED,
        resource=table_resource(table),
        related=[
            {
                "prefect.resource.id": f"rayorch.microbatch.{part.microbatch}",
                "prefect.resource.role": "microbatch",
            }
        ],
        payload={
            "microbatch": part.microbatch,
            "sources": part.sources,
            "present": part.present,
            "failed": part.failed,
            "dropped": part.dropped,
            "children": part.children,
            "attempts": part.attempts,
            "error": part.error[:500],
        },
    )


def corpus_completed(summary: IngestSummary) -> None:
    """``rayorch.corpus.completed``, and the materialization of the table as an asset when rows were added."""
    payload = summary.model_dump(mode="json", exclude={"calls", "failures"})
    emit_event(CORPUS_COMPLETED, resource=table_resource(summary.table), payload=payload)
    if summary.done:
        emit_event(
            ASSET_MATERIALIZED,
            resource={
                "prefect.resource.id": asset_key(summary.table),
                "prefect.resource.name": summary.table.rstrip("/").rpartition("/")[2],
            },
            payload={"present": summary.present, "failed": summary.failed, "children": summary.children},
        )


def table_resource(table: str) -> dict[str, str]:
    return {
        "prefect.resource.id": f"rayorch.table.{asset_key(table)}",
        "prefect.resource.name": table.rstrip("/").rpartition("/")[2] or table,
    }


def asset_key(table: str) -> str:
    """Assets are named by URIs; a local table becomes ``file:///...``."""
    return table if "://" in table else "file://" + table
