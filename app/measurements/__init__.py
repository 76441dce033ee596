"""Measurements from files: our CSV, and other tools' benchmarks."""
