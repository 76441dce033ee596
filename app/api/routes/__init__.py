"""One thin router per resource: parse, one transaction, convert."""
