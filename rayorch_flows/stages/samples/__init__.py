"""Small corpora made in code, the same bytes every time: for a first ingest and for tests. No stage is in here."""
