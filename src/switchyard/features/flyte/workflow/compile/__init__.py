"""From registered entities to a graph that can run, or to its mistakes."""
