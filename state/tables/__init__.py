"""The tables that keep what is true: stores, one partition's rows, the open batch over them, timers."""
