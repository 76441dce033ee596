"""Clocks: how watts, and with them clocks, are shared among GPUs."""
