"""Prefect Block types: where corpora, tables and clusters are, and how fast a flow runs on them."""
