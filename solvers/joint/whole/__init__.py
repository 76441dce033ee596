"""Whole GPUs from the relaxation: rounding, packing, squeezing, ruin and recreate, small fleets."""
