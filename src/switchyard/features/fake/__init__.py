"""Jobs that only pretend to run, for tests of everything around them."""
