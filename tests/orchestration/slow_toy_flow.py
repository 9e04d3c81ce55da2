"""The toy flow with Functions that take their time."""

from __future__ import annotations

import pyarrow as pa

from rayorch_flows.orchestration.ingest.flow_definition import FlowDefinition
from tests.orchestration.toy_flow import make

FLOW = FlowDefinition("slow-toy", lambda: make(0.1), pa.schema([("text", pa.string())]), ("*.txt",))
