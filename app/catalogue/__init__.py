"""GPU types, networks and operating points that ship."""
