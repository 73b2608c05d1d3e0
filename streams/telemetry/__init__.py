"""What a process says about itself: metrics, logs, and the port that shows them."""
