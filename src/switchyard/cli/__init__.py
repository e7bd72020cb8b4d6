"""The commands of `yard`, and what they share to read options and print. They call the server through the SDK only."""
