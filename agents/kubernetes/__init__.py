"""Replicas and tasks as Pods of a Kubernetes cluster."""
