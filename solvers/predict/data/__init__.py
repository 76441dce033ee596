"""Samples in, fits out: the data that techniques exchange, and the table of techniques."""
