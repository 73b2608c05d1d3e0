"""What is true now: records, their transition tables and pure evolve, and the tables that keep them."""
