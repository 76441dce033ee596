"""Batching: the largest batch that a replica takes at once."""
