"""The node half of Plimsoll: observes GPUs, enforces commands, survives alone."""
