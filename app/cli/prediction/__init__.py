"""fit, predict, forecast, samples, profile, capacity-law."""
