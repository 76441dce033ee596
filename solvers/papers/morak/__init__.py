"""Morak: GPUs filled with networks up to their knee points, and partitioned by them."""
