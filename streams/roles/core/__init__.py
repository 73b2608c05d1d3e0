"""The role with rows: events of one partition become decisions, and decisions become rows, records and local work."""
