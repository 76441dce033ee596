"""What every route works with: auth, body, errors, pages, objects."""
