"""`plimsoll-agent doctor`: what an agent can do on a node, and what it cannot."""
