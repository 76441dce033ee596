"""Which replicas share a GPU: knapsack by CP-SAT, bounds, greedy."""
