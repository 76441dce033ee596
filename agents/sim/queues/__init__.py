"""What waits and runs on one simulated replica, and what is counted of it."""
