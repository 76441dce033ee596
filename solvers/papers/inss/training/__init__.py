"""What an actor learns from: the simulated world of provisions, courses of load, the actor, and its training."""
