"""The simulated cluster: measured curves, queues in batches, launch times, faults."""
