"""Nodes, GPUs, GPU types, sync, telemetry."""
