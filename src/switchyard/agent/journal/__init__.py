"""What an agent must not forget: attempts and reports, in a file."""
