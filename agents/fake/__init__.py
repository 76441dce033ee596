"""A device without GPUs behind real HTTP, for demos and tests."""
