"""The feature images, beside its acceptance tests."""
