"""Replicas of all language models at once: covers of each service, and the program that chooses among them."""
