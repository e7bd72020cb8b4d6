"""Files of jobs: objects and trees that users and agents send and read, and the outputs of attempts."""
