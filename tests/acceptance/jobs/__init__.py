"""Jobs and arrays, from submit to the end."""
