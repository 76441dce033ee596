"""The five systems' own experiments: the paper's table, ours, its baselines and `joint`, side by side."""
