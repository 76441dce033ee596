"""Readers of the `config.json` that a network's publisher ships with its weights: one file per subject."""
