"""Processes of replicas and tasks: templates, start, records, logs, end."""
