"""How many replicas of which service on which GPU type: program, two exact solvers, greedy."""
