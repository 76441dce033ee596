"""Techniques that predict the watts of a GPU while a replica runs, one file each, and the clocks that follow."""
