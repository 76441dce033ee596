"""Compiled inner loops, and the arrays that they take apart."""
