"""Audit, webhooks, tokens, sessions, repeated requests."""
