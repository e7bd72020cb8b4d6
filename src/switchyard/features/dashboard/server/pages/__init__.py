"""What each page shows. One file per page: it reads use cases and returns the values of its template."""
