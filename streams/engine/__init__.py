"""The transactional batch loop, the tasks it drives, their restore and their pool; nothing of executions."""
