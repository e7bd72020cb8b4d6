"""Rules of projects: attributes at every level, their kinds, and the templates of cluster resources."""
