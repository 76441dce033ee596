"""HAProxy in the router's place."""
