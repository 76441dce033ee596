"""All SQL of the program: schema revisions, one repository file per noun, and the Store on PostgreSQL."""
