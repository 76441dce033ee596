"""Autoscale: how many replicas of which service on which GPU type, all services together."""
