"""The rules of a job's scope. Pure: rules and a request in, an admitted job or a refusal out."""
