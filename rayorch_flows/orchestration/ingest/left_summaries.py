"""Summaries kept beside the table: by a flow run for its ingest, by an attempt for the one after it."""

from __future__ import annotations

from rayorch_flows.orchestration.reporting.summary import MicrobatchSummary
from rayorch_flows.records.table import RecordTable


def leave_summary(table: RecordTable, summary: MicrobatchSummary) -> None:
    """Keep the summary of a flow run that has ended, for a parent that runs in another process."""
    _leave(table, f"summaries/{summary.microbatch}.json", summary)


def take_summary(table: RecordTable, microbatch: str) -> MicrobatchSummary | None:
    """The summary that the flow run has left, which is then gone; None if it has left none."""
    return _take(table, f"summaries/{microbatch}.json")


def leave_attempts(table: RecordTable, summary: MicrobatchSummary) -> None:
    """Keep the times and Calls of all attempts so far of a flow run, for its next attempt."""
    _leave(table, f"attempts/{summary.microbatch}.json", summary)


def take_attempts(table: RecordTable, microbatch: str, flow_run_id: str) -> MicrobatchSummary | None:
    """What the attempts of this flow run have left, which is then gone; what another run left does not count."""
    found = _take(table, f"attempts/{microbatch}.json")
    return found if found is not None and found.flow_run_id == flow_run_id else None


def _leave(table: RecordTable, path: str, summary: MicrobatchSummary) -> None:
    table.storage().write(path, summary.model_dump_json().encode())


def _take(table: RecordTable, path: str) -> MicrobatchSummary | None:
    storage = table.storage()
    data = storage.read(path)
    if data is None:
        return None
    storage.delete(path)
    return MicrobatchSummary.model_validate_json(data)
