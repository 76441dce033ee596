"""What the contract says of a plan: rows, times beside neighbours, capacity, cost."""
