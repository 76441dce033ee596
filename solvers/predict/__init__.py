"""What a network takes on a GPU, learned from samples."""
