"""GPUs cut into MIG slices, planned beside whole GPUs in one integer program."""
