"""The command line, the SDK, the documents, the wheel."""
