"""The kinds of nodes that an execution can have: one module for each, behind one interface."""
