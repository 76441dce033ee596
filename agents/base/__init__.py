"""The wire contract, what a device can do, and small tools without state."""
