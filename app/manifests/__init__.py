"""The objects that users write, and from there to the solvers' types."""
