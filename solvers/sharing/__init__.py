"""The smallest SM percent that keeps an SLO: convex program, scan."""
