"""Python functions as jobs, and jobs as futures of `concurrent.futures`: calls of the SDK."""
