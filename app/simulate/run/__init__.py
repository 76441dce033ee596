"""From a scenario to results: build, closed loop, record, many runs."""
