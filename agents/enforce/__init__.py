"""From a command to actions on a device, and what governs between commands."""
