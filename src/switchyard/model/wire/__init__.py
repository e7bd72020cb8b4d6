"""From bytes to values and back: messages of the API, bounded decoding, schemas."""
