"""Images from registries: their tags become digests at the submit, and what they need is read without pulling them."""
