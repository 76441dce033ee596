"""Plans, targets, policies, actors, simulations."""
