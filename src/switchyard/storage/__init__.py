"""Where the bytes of files are kept, by their SHA-256: a folder, or an object store. It knows no job and no user."""
