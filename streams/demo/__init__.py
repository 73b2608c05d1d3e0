"""The demos end to end: what is run, on which stage, with which outside party."""
