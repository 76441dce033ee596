"""Replicas as processes: from allow-listed templates, through adapters of their servers, recorded and adopted."""
