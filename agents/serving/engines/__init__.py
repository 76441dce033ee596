"""What executes batches: ONNX Runtime, PyTorch, or measured times."""
