"""What names a program: its code and its constants as text, that text as digests, and the Plan's two fingerprints.

The semantic one names what the records mean, the physical one names the engine host that runs it.
"""
