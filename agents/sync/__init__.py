"""Talking with the control plane: transport, outbox, ledger, lease."""
