"""The demo: a real control plane decides for a simulated fleet, beside Kubernetes' autoscaler on the same load."""
