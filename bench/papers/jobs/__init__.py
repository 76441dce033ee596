"""Jobs on simulated GPUs: what a dispatcher makes of a stream of them, in steps of 50 ms."""
