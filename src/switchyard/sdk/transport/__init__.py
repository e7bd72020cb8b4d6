"""One call of the API: address, token, retries, errors."""
