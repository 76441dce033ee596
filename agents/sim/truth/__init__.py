"""What simulated GPUs really do, from measured tables."""
