"""What people ask: explain, status, what-if, preview, compare policies."""
