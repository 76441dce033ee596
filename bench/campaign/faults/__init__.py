"""Rows `kill` and `fault`: what is broken, how, and when it counts as back."""
