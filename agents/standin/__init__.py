"""A device without GPUs that serves real HTTP, for demos and tests."""
