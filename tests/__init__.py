"""The tests. A package, so that `tests.programs` is ours whatever else is installed."""
