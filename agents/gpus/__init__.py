"""A node with real GPUs: `device` carries commands out, `node` opens all its parts, `use` says who used what."""
