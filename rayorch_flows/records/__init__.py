"""What lasts: the record table, staging of finished parents, discovery of sources, lineage queries."""
