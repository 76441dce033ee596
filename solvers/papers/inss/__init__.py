"""InSS: batch decision, provisions, and an actor that was trained for the fleet."""
