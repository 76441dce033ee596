"""fit, predict, forecast, samples, profile, size, capacity-law."""
