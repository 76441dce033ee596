"""What changes beliefs next to the tick: corrections, samples, forecasts' techniques, refits."""
