"""What travels with container images beside their layers."""
