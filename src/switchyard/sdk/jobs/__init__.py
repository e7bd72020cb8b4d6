"""Submit, follow and change jobs; functions as jobs."""
