"""What all commands share: API client, context, output, files."""
