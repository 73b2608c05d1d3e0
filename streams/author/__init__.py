"""The author's functions called on bytes: on this thread, or in a process of their own."""
