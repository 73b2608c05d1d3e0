"""A whole application in a test: no broker, time moved by hand, a crash as an input."""
