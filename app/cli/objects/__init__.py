"""apply, diff, get, describe, delete, cancel, cordon."""
