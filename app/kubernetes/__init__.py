"""What the control plane has to do with the Kubernetes cluster in which it runs."""
