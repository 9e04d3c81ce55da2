"""The block that says how fast a flow runs."""

from __future__ import annotations

from prefect.blocks.core import Block
from pydantic import Field

from rayorch_flows.blocks.base import STRICT
from rayorch_flows.orchestration.settings import places
from rayorch_flows.orchestration.settings.call_settings import CallSettings
from rayorch_flows.orchestration.settings.places import Tuning


class EngineSettings(Block):
    """How the Calls of a flow run: actors, batches, GPUs, recovery. Never what their records mean.

    Give it to a flow as `engine: engine-settings/BLOCK_NAME`. Changing it re-ingests nothing.

    Example:
        Load it and look at what it changes:
        ```python
        from rayorch_flows.blocks import EngineSettings

        settings = EngineSettings.load("BLOCK_NAME")
        print(settings.calls)
        ```
    """

    model_config = STRICT

    _block_type_name = "Engine Settings"
    _block_type_slug = places.ENGINE_SETTINGS

    calls: dict[str, CallSettings] = Field(
        title="Calls",
        description="Settings by the name of a Call; a module's name stands for all its Calls.",
        examples=[{"ocr": {"replicas": 8, "batch_size": 48, "num_gpus": 1, "recovery": "isolate_tail"}}],
    )

    def place(self) -> Tuning:
        """The settings."""
        return Tuning(self.calls)
