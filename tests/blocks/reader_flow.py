"""A flow whose two Functions, in workers of their own, open every source: first its URI, then the one handed on."""

from __future__ import annotations

import pyarrow as pa

from rayorch_flows import F, Pipeline, RayModule, RecordFailure
from rayorch_flows.orchestration.ingest.flow_definition import FlowDefinition
from rayorch_flows.stages import files


class Lines:
    """URI -> (URI, number) for each line."""

    def run(self, uris: list[str]) -> list[object]:
        return [self._read(uri) for uri in uris]

    def _read(self, uri: str) -> object:
        print("reading", repr(uri))  # Ray keeps what workers print in its logs
        try:
            text = files.read_all(uri, 1000).decode()
        except files.SourceFailure as failure:
            return RecordFailure(failure.message, kind=failure.kind, retryable=failure.retryable)
        return [(uri, number) for number in range(len(text.splitlines()))]


class Line:
    """(URI, number) -> line."""

    def run(self, places: list[tuple[str, int]]) -> list[str]:
        return [files.read_all(uri, 1000).decode().splitlines()[number].upper() for uri, number in places]


class Join:
    def run(self, uris: list[str], lines: list[list[str]]) -> list[dict[str, str]]:
        return [{"text": "\n".join(each), "place": uri} for uri, each in zip(uris, lines, strict=True)]


class Reader(Pipeline):
    def __init__(self) -> None:
        self.lines = RayModule(Lines).ray_options(batch_size=4, num_cpus=0)
        self.line = RayModule(Line).ray_options(batch_size=4, num_cpus=0)
        self.join = RayModule(Join).ray_options(batch_size=4, num_cpus=0)

    def forward(self, uris):  # type: ignore[no-untyped-def]
        return self.join(uris, F.reduce(self.line(F.expand(self.lines(uris), name="line"))))


FLOW = FlowDefinition("reader", Reader, pa.schema([("text", pa.string()), ("place", pa.string())]), ("*.md",))
