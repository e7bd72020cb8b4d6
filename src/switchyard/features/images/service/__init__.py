"""The use case: what happens to a request that names an image of a listed registry."""
