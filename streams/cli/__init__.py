"""The command line: one module for each family of commands, over click and rich."""
