"""Techniques that predict the execution time of a batch, alone on the GPU. One file each, named by technique."""
