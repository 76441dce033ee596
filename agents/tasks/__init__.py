"""Training and offline tasks as processes: progress, memory swap."""
