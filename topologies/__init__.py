"""What follows: pure decisions, one module a concern, and the pipeline model."""
