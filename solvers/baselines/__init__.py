"""What others do: Kubernetes' HPA, gpu-lets, GSLICE, iGniter, MuxFlow."""
