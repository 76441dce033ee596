"""Where policies stop thinking, so that a unit mistake in a Problem costs neither hours nor all memory."""

MOST_REPLICAS = 10_000
"""Of one plan, and of one entry of the running one; what more would serve is unserved."""
LEAST_CAPACITY_RPS = 1e-6
"""A replica that serves less, one request in eleven days, counts as one that misses its SLO."""
