"""The Ray cluster that flows use: checked, connected, left; the task runner and the one task of a microbatch.

Engine hosts are here as an operator sees them: listed, drained, stopped.
"""
