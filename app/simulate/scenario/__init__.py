"""What is simulated, as users write it, and what is wrong with it."""
