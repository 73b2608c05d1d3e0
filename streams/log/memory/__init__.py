"""The log in memory: the same transactions, groups and compaction, one process, gone at its end."""
