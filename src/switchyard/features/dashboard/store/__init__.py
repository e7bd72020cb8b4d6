"""The SQL of the pages: jobs counted by a field, or in another order."""
