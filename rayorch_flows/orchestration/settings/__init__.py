"""Where things are: the project's home, the places of a run, its Calls' settings, and the blocks that hold them.

Everything here is read and checked before anything is started.
"""
