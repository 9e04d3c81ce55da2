"""The Prefect server: given or embedded, kept alive while a command uses it, waited for while it is away.

Also how our flow runs tell it that they ended.
"""
