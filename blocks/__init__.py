"""Prefect Block types: where corpora, tables and clusters are, and how fast a flow runs on them.

Register them with ``rayorch-flows blocks register`` or ``prefect block register -m blocks``.
"""

from blocks.corpus_source import CorpusSource
from blocks.engine_settings import EngineSettings
from blocks.ray_cluster import RayCluster
from blocks.record_table import RecordTable

__all__ = ["CorpusSource", "EngineSettings", "RayCluster", "RecordTable"]
