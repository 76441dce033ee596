"""Errors, clock, settings, logs: what everything above may use."""
