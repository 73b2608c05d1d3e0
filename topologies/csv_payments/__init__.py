"""The pipeline of the demo: an author's project, as a stranger would write it."""
