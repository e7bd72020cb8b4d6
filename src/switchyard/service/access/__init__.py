"""Who may come in: users and their tokens and grants, projects, submit tokens."""
