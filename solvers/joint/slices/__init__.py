"""GPUs cut into MIG slices, planned with whole GPUs in one integer program."""
