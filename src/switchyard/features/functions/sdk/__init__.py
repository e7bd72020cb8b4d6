"""The part of the client about functions and futures."""
