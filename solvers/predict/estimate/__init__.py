"""From fits to latencies, watts, memory and operating points."""
