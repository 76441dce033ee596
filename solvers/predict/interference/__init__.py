"""Techniques for what neighbours add to a time."""
