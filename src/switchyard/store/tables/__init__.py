"""The tables, by subject, and whether a database has them. Queries are in the other rooms."""
