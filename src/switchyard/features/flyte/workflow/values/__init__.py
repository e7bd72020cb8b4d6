"""Values of workflows: literals, bindings, casts, plain forms."""
