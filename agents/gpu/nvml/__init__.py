"""NVML, the one way to the driver."""
