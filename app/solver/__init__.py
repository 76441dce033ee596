"""The solver's process, and what can be asked of it."""
