"""Whole plans from a relaxation: diving, ruin and recreate, elimination, annealing, packing."""
