"""A job is there: look at it, explain it, steer it, count it."""
