"""Prediction: what a network does on a GPU type, and how full a replica may run."""
