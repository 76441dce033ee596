"""What all layers exchange: state, problem, plan, outcome, and their JSON."""
