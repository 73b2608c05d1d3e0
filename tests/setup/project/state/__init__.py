"""What we know."""
