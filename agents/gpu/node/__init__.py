"""A machine with GPUs as a device: who uses what, what starts, what failed."""
