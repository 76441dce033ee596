"""From the running plan to the next with few starts, from a warm start."""
