"""token, db, config, doctor, version."""
