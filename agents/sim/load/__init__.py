"""Where simulated requests come from, and which replica gets which."""
