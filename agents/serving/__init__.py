"""Our own worker: one replica by the Open Inference Protocol v2."""
