"""What there is: clusters and their agents, what they have, how they are laid out, what is known of them now."""
