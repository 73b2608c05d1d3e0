"""What goes in and out."""
