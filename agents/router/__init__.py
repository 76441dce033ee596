"""Requests in front of workers: lanes, queues, health, connections."""
