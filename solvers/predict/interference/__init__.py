"""Techniques that predict by how much the neighbours on a GPU stretch the execution time. One file each."""
