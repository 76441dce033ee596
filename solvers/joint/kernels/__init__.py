"""Compiled kernels of pricing. They take and fill arrays; `solvers.joint.pricing` calls them, mode by mode."""
