"""Nodes, GPU types, observations, windows."""
