"""Morak: knee partition, and the inverse of its constraints."""
