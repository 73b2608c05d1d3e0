"""Outside parties: how each is spoken to."""
