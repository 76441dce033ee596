"""NVML, the one way to the driver: `session` asks, `reading` and `slices` are what is asked."""
