"""What pages show and follow: one topic per file, and the feed."""
