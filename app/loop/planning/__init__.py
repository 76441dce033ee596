"""What a plan is made of: groups of services, the network of each, limits on power, and the points of tasks."""
