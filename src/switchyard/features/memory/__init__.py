"""Token pools in the memory of one server."""
