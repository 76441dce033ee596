"""The profiler: cells, benches, windows, journal."""
