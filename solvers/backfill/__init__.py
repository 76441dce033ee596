"""Training and offline tasks on what replicas leave over."""
