"""The dispatcher of offline jobs beside the tick (OLTunes)."""
