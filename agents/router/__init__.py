"""Requests: our own router, and HAProxy in its place; both follow `request_router`."""
