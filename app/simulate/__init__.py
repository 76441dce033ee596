"""The control loop on simulated nodes: the same tick, planner, checker and agents, with a store in memory."""
