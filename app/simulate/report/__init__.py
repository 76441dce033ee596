"""What a simulation came to: comparison, charts, one HTML page."""
