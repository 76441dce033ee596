"""The impure half of the control plane: HTTP, database, clock, processes."""
