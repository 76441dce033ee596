"""Feedback on a node, once a second: clock and batches under cap and latency. Standard library only."""
