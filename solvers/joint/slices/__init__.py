"""GPUs that are cut into MIG slices, beside those that are shared, in one master problem."""
