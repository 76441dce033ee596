"""The formulation: a Problem as patterns and columns, and back to a Plan."""
