"""The Prefect side. Rooms, lowest first: settings, reporting, server, cluster, ingest, arrival, upkeep.

Each imports only from those before it; ``make lint`` holds the order.
"""
