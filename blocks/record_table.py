"""The block that says where a record table lies. The table itself is ``rayorch_flows.records.table.RecordTable``."""

from __future__ import annotations

from typing import Any

from prefect.blocks.core import Block
from prefect.types import SecretDict
from pydantic import Field, field_validator

from rayorch_flows.blocks.base import STRICT, without_password
from rayorch_flows.orchestration.settings import places
from rayorch_flows.orchestration.settings.places import TablePlace


class RecordTable(Block):
    """Where a record table lies, and what it takes to read and write it.

    Give it to a flow as `table: record-table/BLOCK_NAME`.

    Example:
        Load it and look at what it names:
        ```python
        from rayorch_flows.blocks import RecordTable

        table = RecordTable.load("BLOCK_NAME")
        print(table.uri)
        ```
    """

    model_config = STRICT

    _block_type_name = "Record Table"
    _block_type_slug = places.RECORD_TABLE

    uri: str = Field(
        min_length=1,
        title="URI",
        description="The table's folder, or its object store URI as deltalake spells it.",
        examples=["s3://records/books", "/data/records/books"],
    )
    storage_options: SecretDict = Field(
        default_factory=lambda: SecretDict({}),
        title="Storage options",
        description="What deltalake needs to open the table: names and values, all text. All of it is kept secret.",
        examples=[{"AWS_ACCESS_KEY_ID": "AKIA...", "AWS_SECRET_ACCESS_KEY": "...", "AWS_REGION": "eu-central-1"}],
    )

    _uri = field_validator("uri")(without_password)

    @field_validator("storage_options")
    @classmethod
    def _all_text(cls, value: SecretDict) -> SecretDict:
        options: dict[str, Any] = value.get_secret_value()
        other = sorted(name for name, option in options.items() if not isinstance(option, str))
        if other:
            raise ValueError(f"deltalake takes text only, write these in quotes: {', '.join(other)}")
        return value

    def place(self) -> TablePlace:
        """The contents, with the storage options in the clear."""
        return TablePlace(self.uri, self.storage_options.get_secret_value())
