"""The `plimsoll` command; folders are the sections of its help."""
