"""Lower bounds: column generation, master, pricing, cuts, branch and price."""
