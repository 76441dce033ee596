"""Simulations that people ask the API for."""
