"""`plimsoll-agent doctor`: what an agent can do on this node."""
