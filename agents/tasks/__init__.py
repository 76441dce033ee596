"""Training and offline tasks as processes, with progress, and ways to give their memory back."""
