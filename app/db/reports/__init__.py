"""Rows of reporting views, and what the dashboard shows."""
