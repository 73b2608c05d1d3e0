"""How a process of ours starts, is tuned, is told to stop, and ends with its parent."""
