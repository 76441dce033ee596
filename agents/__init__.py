"""The node half: observes GPUs, enforces commands, survives alone."""
