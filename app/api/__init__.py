"""The REST API: one folder per family of objects."""
