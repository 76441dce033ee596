"""top, cost, slo, events."""
