"""Load and job lists from public sets, changed, described, made."""
