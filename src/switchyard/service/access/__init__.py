"""Access: users with their tokens and grants, projects, submit tokens."""
