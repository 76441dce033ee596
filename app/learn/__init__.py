"""What changes beliefs beside the tick: corrections, samples, forecasts' techniques, refits."""
