"""What a job is: its request, its states, its tasks, its retries."""
