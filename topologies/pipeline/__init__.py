"""A pipeline as the engine sees it: bound, checked, immutable."""
