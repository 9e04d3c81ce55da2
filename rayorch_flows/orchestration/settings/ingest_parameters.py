"""What an ingest is asked to do: one description for the command, the parent flow, the sensor and each microbatch.

Prefect makes a form from a flow's signature, the command its help: neither can be derived from here, so a test holds
their parameters and defaults to these fields.
"""

from __future__ import annotations

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rayorch_flows.errors import UsageError
from rayorch_flows.orchestration.settings.call_settings import CallSettings
from rayorch_flows.orchestration.settings.places import is_block
from rayorch_flows.records.planning import Retry


class IngestParameters(BaseModel):
    """Names of blocks stay names: whoever needs a block loads it. Times are in seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str
    table: str
    flow: str = "pdf"
    microbatch_size: int = Field(default=32, ge=1)
    concurrency: int = Field(default=2, ge=1)
    limit: int | None = Field(default=None, ge=1)
    max_failed: int | None = Field(default=None, ge=0)
    retry: Retry = Retry.NONE
    settle_s: float = Field(default=0.0, ge=0)
    deployment: str | None = None
    cluster: str | None = None
    engine: str | dict[str, CallSettings] | None = None

    @classmethod
    def checked(cls, **values: Any) -> Self:
        """Raises UsageError with the first value that cannot be, as its option is spelt."""
        try:
            return cls(**values)
        except ValidationError as error:
            raise UsageError(_complaint(error)) from None

    def flow_arguments(self) -> dict[str, Any]:
        """As the ``ingest`` flow takes them."""
        return {name: getattr(self, name) for name in type(self).model_fields}

    def microbatch_arguments(self, table_uri: str, microbatch: str) -> dict[str, Any]:
        """As the ``ingest-microbatch`` flow takes them, in JSON values: a run of a deployment gets them by HTTP."""
        shared = self.model_dump(mode="json", include={"flow", "cluster", "engine"}, exclude_none=True)
        return {
            "cluster": None,
            "engine": None,
            **shared,
            "table": self.table if is_block(self.table) else table_uri,
            "source": self.source if is_block(self.source) else "",
            "microbatch": microbatch,
        }


def _complaint(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    name = ".".join(str(part).replace("_", "-") for part in first["loc"])
    least = first.get("ctx", {}).get("ge")
    if least is not None:
        return f"{name} is {first['input']}, it must be at least {least}"
    return f"{name}: {first['msg']}"
