"""Techniques for the time of a batch alone on a GPU, one file each."""
