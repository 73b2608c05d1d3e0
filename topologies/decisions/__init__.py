"""What follows: rows and an event in, decisions out; no clock, no I/O."""
