"""How the database is reached: connections, transactions, dialects, the clock, locks, leadership."""
