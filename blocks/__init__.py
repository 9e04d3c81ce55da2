"""Prefect Block types: where corpora, tables and clusters are, and how fast a flow runs on them.

Register them with ``rayorch-flows blocks register`` or ``prefect block register -m rayorch_flows.blocks``.
"""

from rayorch_flows.blocks.corpus_source import CorpusSource
from rayorch_flows.blocks.engine_settings import EngineSettings
from rayorch_flows.blocks.ray_cluster import RayCluster
from rayorch_flows.blocks.record_table import RecordTable

__all__ = ["CorpusSource", "EngineSettings", "RayCluster", "RecordTable"]
