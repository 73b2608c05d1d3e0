"""What a process says about itself: metrics, logs, traces, and the port that shows them."""
