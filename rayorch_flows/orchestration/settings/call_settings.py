"""How a run tunes the Calls of its flow: validated settings, and the ``ray_options`` that they stand for."""

from __future__ import annotations

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rayorch_flows.program.recovery import RecoveryMode, RecoveryPolicy

_RETRYING = (RecoveryMode.RETRY_BATCH, RecoveryMode.RETRY_TAIL)


class CallSettings(BaseModel):
    """Physical options of one Call. What is not given stays as the flow says; records never depend on any of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    replicas: int | None = Field(
        default=None, ge=1, title="Replicas", description="How many actors run this Call side by side.", examples=[8]
    )
    batch_size: int | None = Field(
        default=None, ge=1, title="Batch size", description="The most items in one dispatch batch.", examples=[48]
    )
    num_gpus: float | None = Field(
        default=None,
        ge=0,
        title="GPUs",
        description="GPUs of each actor; a fraction lets several actors share one.",
        examples=[1, 0.25],
    )
    recovery: RecoveryMode | None = Field(
        default=None,
        title="Recovery",
        description="What an exception in the Function means: abort the microbatch, retry the batch at once, retry it "
        "at the tail, or isolate the item that raises.",
        examples=["isolate_tail"],
    )
    max_retries: int | None = Field(
        default=None,
        ge=0,
        title="Retries",
        description="How often retry_batch and retry_tail try again before they abort; 1 if it is not given.",
        examples=[2],
    )
    infra_retries: int | None = Field(
        default=None,
        ge=0,
        title="Infrastructure retries",
        description="How often a dead actor, a lost node or an exceeded deadline is forgiven before items are "
        "isolated; 1 if it is not given.",
        examples=[3],
    )

    @model_validator(mode="after")
    def _recovery_is_whole(self) -> Self:
        if self.recovery is None and (self.max_retries, self.infra_retries) != (None, None):
            raise ValueError("max_retries and infra_retries belong to a recovery: say which one")
        if self.max_retries is not None and self.recovery not in _RETRYING:
            raise ValueError(f"recovery {self.recovery} has no max_retries, only retry_batch and retry_tail have")
        return self

    def options(self) -> dict[str, Any]:
        """The given settings as ``ray_options``."""
        given = {"replicas": self.replicas, "batch_size": self.batch_size, "num_gpus": self.num_gpus}
        found: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        if self.recovery is not None:
            found["recovery"] = self._policy(self.recovery)
        return found

    def _policy(self, mode: RecoveryMode) -> RecoveryPolicy:
        infra_retries = 1 if self.infra_retries is None else self.infra_retries
        if mode is RecoveryMode.ABORT:
            return RecoveryPolicy.abort(infra_retries=infra_retries)
        if mode is RecoveryMode.ISOLATE_TAIL:
            return RecoveryPolicy.isolate_tail(infra_retries=infra_retries)
        max_retries = 1 if self.max_retries is None else self.max_retries
        return RecoveryPolicy(mode, max_retries, infra_retries)
