"""Real GPUs: driver, knobs, sharing, slices, and the node made of them."""
