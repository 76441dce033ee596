"""The agent as a process: its loop, its parts, its metrics, its request port."""
