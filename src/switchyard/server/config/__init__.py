"""The configuration file, a module for each section."""
