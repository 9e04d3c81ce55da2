"""The engine host, a detached named actor that owns an engine and keeps its models warm from flow run to flow run.

Clients and the actor speak in ``messages``; each attached microbatch has a writer that hands finished source items on.
"""
