"""Profiles, samples, fits, health, forecasts."""
