"""What a user hands to a program, handled as plain values: told apart by type, copied, pickled.

Nothing here knows Ports, Calls or Plans.
"""
