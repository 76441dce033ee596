"""What one API process keeps between requests."""
