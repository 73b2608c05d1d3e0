"""From pipeline.yaml to a Pipeline, with every problem at once."""
