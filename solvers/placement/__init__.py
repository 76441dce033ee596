"""Placement: which replicas share a GPU."""
