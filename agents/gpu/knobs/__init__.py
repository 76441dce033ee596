"""Clocks and power limits: journal, turn, put back."""
