"""The only room with SQL: the schema, queries by noun, and what differs between SQLite and PostgreSQL."""
