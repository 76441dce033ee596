"""MPS: one daemon per GPU, shares proven, faults left behind."""
