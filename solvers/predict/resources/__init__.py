"""Techniques for watts and memory."""
