"""Replicas as processes: adapters of model servers, readiness, drain."""
