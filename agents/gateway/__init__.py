"""The gateway: one address for every service of the cluster, whatever moves between its nodes."""
