"""Tokens, webhooks, events, health, metrics."""
