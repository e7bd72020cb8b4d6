"""The commands about users, projects, grants and tokens."""
