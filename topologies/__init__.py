"""What follows: the pipeline model, from pipeline.yaml to it, and the pure decisions, one module a concern."""
