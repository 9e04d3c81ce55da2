"""How payloads travel: rows into bytes, bytes into blocks, blocks between driver, object store and workers.

What a Function returned is checked here before it becomes a block.
"""
