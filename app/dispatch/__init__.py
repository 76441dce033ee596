"""The dispatcher of offline jobs next to the tick (OLTunes)."""
