"""What decisions read: clusters, rules and graphs, kept until they change."""
