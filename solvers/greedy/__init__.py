"""The greedy planner that everybody falls back on, and the steps that policies share."""
