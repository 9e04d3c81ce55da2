"""From a source to committed rows: flow definitions, the parent flow, the microbatch flow, its work beside the table.

Microbatches run inside the parent's process or as runs of a deployment.
"""
