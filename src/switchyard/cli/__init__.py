"""The commands of `yard`, one file per noun or verb. They know the SDK and the terminal, not the server's inside."""
