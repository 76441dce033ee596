"""Sharing: the smallest SM percent with which a replica keeps its limit."""
