"""The dashboard: pages, files, login."""
