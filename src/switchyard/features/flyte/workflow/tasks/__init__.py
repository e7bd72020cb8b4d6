"""From a task to the job that runs it."""
