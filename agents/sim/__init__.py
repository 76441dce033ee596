"""The simulated cluster: queues, load, nodes, faults."""
