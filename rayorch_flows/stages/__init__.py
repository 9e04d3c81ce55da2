"""Ready-made Functions, by medium: a class with ``__init__`` (load the model) and ``run`` (batch in, batch out).

Pages, pictures and texts travel as the frozen data that each medium's room defines.
"""
