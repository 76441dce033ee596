"""simulate, trace."""
