"""What a person sees: summaries, Markdown reports, pictures, progress, events, the run's log, lists of failures.

Everything here turns facts into text or numbers; nothing decides or starts anything.
"""
