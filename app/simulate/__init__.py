"""The same loop on a virtual clock."""
