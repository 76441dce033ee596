"""What the contract says of a plan: rows, times next to neighbours, capacity, cost."""
