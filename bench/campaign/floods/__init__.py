"""Rows `fuzz` and `greedy`: those who send too much, or nonsense, and those next to them."""
