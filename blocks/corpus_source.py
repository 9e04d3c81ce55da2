"""The block that says where a corpus lies."""

from __future__ import annotations

from prefect.blocks.core import Block
from prefect.types import SecretDict
from pydantic import Field, field_validator

from rayorch_flows.blocks.base import STRICT, without_password
from rayorch_flows.orchestration.settings import places
from rayorch_flows.orchestration.settings.places import SourcePlace


class CorpusSource(Block):
    """Where a corpus lies: a folder, a glob or a bucket, and what it takes to read it.

    Give it to a flow as `source: corpus-source/BLOCK_NAME`.

    Example:
        Load it and look at what it names:
        ```python
        from rayorch_flows.blocks import CorpusSource

        corpus = CorpusSource.load("BLOCK_NAME")
        print(corpus.uri)
        ```
    """

    model_config = STRICT

    _block_type_name = "Corpus Source"
    _block_type_slug = places.CORPUS_SOURCE

    uri: str = Field(
        min_length=1,
        title="URI",
        description="A folder, a glob, a file, or a URI that fsspec understands.",
        examples=["s3://scans/2025/", "/data/pdfs/**/*.pdf"],
    )
    patterns: list[str] = Field(
        default_factory=list[str],
        title="Patterns",
        description="File name patterns that count inside folders; without any, those of the flow.",
        examples=[["*.pdf"]],
    )
    storage_options: SecretDict = Field(
        default_factory=lambda: SecretDict({}),
        title="Storage options",
        description="What fsspec needs to open the URI: keys, tokens, endpoint. All of it is kept secret.",
        examples=[{"key": "AKIA...", "secret": "...", "client_kwargs": {"endpoint_url": "http://minio:9000"}}],
    )

    _uri = field_validator("uri")(without_password)

    def place(self) -> SourcePlace:
        """The contents, with the storage options in the clear."""
        return SourcePlace(self.uri, tuple(self.patterns), self.storage_options.get_secret_value())
