"""All SQL: the Store on PostgreSQL, and what the leader does by the hour."""
