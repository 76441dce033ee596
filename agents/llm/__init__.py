"""A language model's engine without a network: continuous batching in real steps, an OpenAI server, vLLM's metrics."""
