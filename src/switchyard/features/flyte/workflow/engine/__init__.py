"""One step of an execution: values in, what to start out."""
